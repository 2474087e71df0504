// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The CUDA back end of a build without one: no devices, and an error for whoever insists.
#include "base/device_memory.hpp"
#include "base/error.hpp"
#include "conclave/device.hpp"
#include "cuda/copy_check.hpp"
#include "cuda/current_device.hpp"
#include "cuda/dense.hpp"
#include "cuda/no_back_end.hpp"

namespace conclave {

bool has_cuda_back_end() noexcept {
  return false;
}

std::vector<DeviceFacts> cuda_devices() {
  return {};
}

DeviceFacts cuda_facts(int) {
  cuda::no_back_end();
}

void copy(const ConstTensorView& from, const TensorView& to, Stream stream) {
  cuda::check_copy(from, to, stream);
  if (stream.device.type != DeviceType::cpu) cuda::no_back_end();
  cuda::copy_on_host(from, to);
}

void synchronize(Stream stream) {
  if (stream.device.type != DeviceType::cpu) cuda::no_back_end();
}

CudaStream::CudaStream(int) {
  cuda::no_back_end();
}
CudaStream::~CudaStream() = default;
CudaStream::CudaStream(CudaStream&&) noexcept = default;
CudaStream& CudaStream::operator=(CudaStream&&) noexcept = default;

CudaGraph::CudaGraph(Stream, FunctionRef<void()>) {
  cuda::no_back_end();
}
CudaGraph::~CudaGraph() = default;
CudaGraph::CudaGraph(CudaGraph&&) noexcept = default;
CudaGraph& CudaGraph::operator=(CudaGraph&&) noexcept = default;
void CudaGraph::launch(Stream) const {}

double seconds_on(Stream, FunctionRef<void()>) {
  cuda::no_back_end();
}

CudaCeilings measure_cuda_ceilings(int) {
  cuda::no_back_end();
}

namespace device_memory {

std::byte* allocate(Device, std::int64_t) {
  cuda::no_back_end();
}
void release(Device, std::byte*) noexcept {}
void fill(Device, std::byte*, int, std::int64_t) noexcept {}

}  // namespace device_memory

namespace cuda {

void no_back_end() {
  fail(ErrorKind::unsupported, "this build has no CUDA back end");
}

CurrentDevice::CurrentDevice(Device device) {
  if (device.type != DeviceType::cpu) no_back_end();
}
CurrentDevice::~CurrentDevice() = default;

void dense(const ConstTensorView&, const ConstTensorView&, const std::optional<ConstTensorView>&, const TensorView&,
           Stream) {
  no_back_end();
}

}  // namespace cuda
}  // namespace conclave
