// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What a caller of a GPU needs beside the layer: which GPUs there are, copies, a stream, graphs and times. The classes
// wrap the CUDA runtime, so that programs need neither its headers nor its libraries; in a build without the CUDA back
// end each call that would need one throws Error(unsupported).
#pragma once

#include <string>
#include <vector>

#include "conclave/config.hpp"
#include "conclave/function_ref.hpp"
#include "conclave/stream.hpp"

namespace conclave {

/// True if this build has the CUDA back end, whether or not there is a GPU.
bool has_cuda_back_end() noexcept;

/// One entry for each visible GPU, in the runtime's order, without measured ceilings. Empty where there is no GPU, no
/// driver, or no CUDA in this build; never an error, because asking is harmless.
std::vector<DeviceFacts> cuda_devices();

/// Facts of one GPU. Throws Error(unsupported) with the reason (no back end, no driver, no such index).
DeviceFacts cuda_facts(int index);

/// to := from, elements of one dtype and shape, any strides, either end on the host or on the stream's GPU. Where an
/// end is host memory, the copy is complete on return (and so cannot be captured in a graph); between two views on the
/// GPU it is work of the stream. Throws Error on shapes and devices.
void copy(const ConstTensorView& from, const TensorView& to, Stream stream);

/// Waits for all work of the stream. Reports errors of that work as Error.
void synchronize(Stream stream);

/// Owns a stream of one GPU.
class CudaStream {
 public:
  explicit CudaStream(int index);
  ~CudaStream();
  CudaStream(CudaStream&&) noexcept;
  CudaStream& operator=(CudaStream&&) noexcept;
  Stream stream() const noexcept { return stream_; }

 private:
  Stream stream_{};
};

/// Work that was recorded once and can be started again and again with one call. Everything that it touches must stay.
class CudaGraph {
 public:
  /// Records what `record` gives the stream. Work that waits for the GPU cannot be recorded: Error.
  CudaGraph(Stream stream, FunctionRef<void()> record);
  ~CudaGraph();
  CudaGraph(CudaGraph&&) noexcept;
  CudaGraph& operator=(CudaGraph&&) noexcept;
  void launch(Stream stream) const;

 private:
  void* executable_ = nullptr;
};

/// Seconds between the start and the end of `work` on the GPU, by its own clock. Waits for it.
double seconds_on(Stream stream, FunctionRef<void()> work);

/// What a GPU can do at most, measured: bytes_per_second of copies on the device (read and written bytes together),
/// bf16_flops and f16_flops of the vendor's library (0 where it is not installed). About two seconds.
struct CudaCeilings {
  double bytes_per_second = 0;
  double bf16_flops = 0;
  double f16_flops = 0;
  std::string note;  ///< Why something is 0.
};
CudaCeilings measure_cuda_ceilings(int index);

}  // namespace conclave
