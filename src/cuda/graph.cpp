// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// CudaStream, CudaGraph and seconds_on() of device.hpp.
#include <cuda_runtime_api.h>

#include <exception>
#include <utility>

#include "base/error.hpp"
#include "base/tensor_format.hpp"
#include "conclave/device.hpp"
#include "cuda/check.hpp"
#include "cuda/current_device.hpp"

namespace conclave {
namespace {

cudaStream_t native(const Stream& stream) {
  require(stream.device.type == DeviceType::cuda, "stream: given one on {}, expected a GPU", stream.device);
  return static_cast<cudaStream_t>(stream.native);
}

struct Event {
  cudaEvent_t event = nullptr;
  Event() { cuda::check(cudaEventCreate(&event), "cudaEventCreate"); }
  ~Event() { static_cast<void>(cudaEventDestroy(event)); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
};

/// Ends a capture on every path, or the stream would refuse whatever comes next.
cudaGraph_t capture(cudaStream_t stream, FunctionRef<void()> record) {
  // Other threads may allocate meanwhile: only this thread's calls are watched.
  cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  std::exception_ptr failure;
  try {
    record();
  } catch (...) {
    failure = std::current_exception();
  }
  cudaGraph_t graph = nullptr;
  const cudaError_t status = cudaStreamEndCapture(stream, &graph);
  if (failure) {
    if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
    static_cast<void>(cudaGetLastError());
    std::rethrow_exception(failure);
  }
  cuda::check(status, "cudaStreamEndCapture");
  return graph;
}

}  // namespace

CudaStream::CudaStream(int index) {
  const cuda::CurrentDevice here(Device{DeviceType::cuda, index});
  cudaStream_t stream = nullptr;
  cuda::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  stream_ = Stream::cuda(stream, index);
}

CudaStream::~CudaStream() {
  if (stream_.native != nullptr) static_cast<void>(cudaStreamDestroy(static_cast<cudaStream_t>(stream_.native)));
}

CudaStream::CudaStream(CudaStream&& other) noexcept : stream_(std::exchange(other.stream_, {})) {}

CudaStream& CudaStream::operator=(CudaStream&& other) noexcept {
  std::swap(stream_, other.stream_);
  return *this;
}

CudaGraph::CudaGraph(Stream stream, FunctionRef<void()> record) {
  const cuda::CurrentDevice here(stream.device);
  cudaGraph_t graph = capture(native(stream), record);
  cudaGraphExec_t executable = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
  static_cast<void>(cudaGraphDestroy(graph));
  cuda::check(status, "cudaGraphInstantiate");
  executable_ = executable;
}

CudaGraph::~CudaGraph() {
  if (executable_ != nullptr) static_cast<void>(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable_)));
}

CudaGraph::CudaGraph(CudaGraph&& other) noexcept : executable_(std::exchange(other.executable_, nullptr)) {}

CudaGraph& CudaGraph::operator=(CudaGraph&& other) noexcept {
  std::swap(executable_, other.executable_);
  return *this;
}

void CudaGraph::launch(Stream stream) const {
  const cuda::CurrentDevice here(stream.device);
  cuda::check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable_), native(stream)), "cudaGraphLaunch");
}

double seconds_on(Stream stream, FunctionRef<void()> work) {
  const cuda::CurrentDevice here(stream.device);
  const Event begin, end;
  cuda::check(cudaEventRecord(begin.event, native(stream)), "cudaEventRecord");
  work();
  cuda::check(cudaEventRecord(end.event, native(stream)), "cudaEventRecord");
  cuda::check(cudaEventSynchronize(end.event), "cudaEventSynchronize");
  float milliseconds = 0;
  cuda::check(cudaEventElapsedTime(&milliseconds, begin.event, end.event), "cudaEventElapsedTime");
  return 1e-3 * static_cast<double>(milliseconds);
}

}  // namespace conclave
