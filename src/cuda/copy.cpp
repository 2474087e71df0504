// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// copy() and synchronize() of device.hpp: strided copies as one or more copies of the runtime.
#include <cuda_runtime_api.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/tensor_format.hpp"
#include "conclave/device.hpp"
#include "cuda/check.hpp"
#include "cuda/copy_check.hpp"
#include "cuda/current_device.hpp"

namespace conclave {
namespace {

/// Rows of bytes at two addresses; what the runtime copies in one call.
void copy_rows(const ConstTensorView& from, const TensorView& to, cudaStream_t stream) {
  const auto row_bytes = static_cast<std::size_t>(bytes_of(from.dtype, from.size(1)));
  const auto pitch = [&](const ConstTensorView& v) {
    return std::max(row_bytes, static_cast<std::size_t>(bytes_of(v.dtype, v.stride(0))));
  };
  cuda::check(cudaMemcpy2DAsync(to.data, pitch(to), from.data, pitch(from), row_bytes,
                                static_cast<std::size_t>(from.size(0)), cudaMemcpyDefault, stream),
              "cudaMemcpy2DAsync");
}

void copy_elements(const ConstTensorView& from, const TensorView& to, cudaStream_t stream) {
  if (from.numel() == 0) return;
  if (from.is_contiguous() && to.is_contiguous()) {
    cuda::check(cudaMemcpyAsync(to.data, from.data, static_cast<std::size_t>(from.bytes()), cudaMemcpyDefault, stream),
                "cudaMemcpyAsync");
  } else if (from.rank == 1) {
    // A column: rows of one element.
    const auto column = [](auto v) {
      v.rank = 2;
      v.shape[1] = v.strides[1] = 1;
      return v;
    };
    copy_rows(column(from), column(to), stream);
  } else if (from.rank == 2 && from.stride(1) == 1 && to.stride(1) == 1) {
    copy_rows(from, to, stream);
  } else {
    for (std::int64_t i = 0; i < from.size(0); ++i) copy_elements(from.at(i), to.at(i), stream);
  }
}

}  // namespace

void copy(const ConstTensorView& from, const TensorView& to, Stream stream) {
  cuda::check_copy(from, to, stream);
  if (stream.device.type == DeviceType::cpu) return cuda::copy_on_host(from, to);
  const cuda::CurrentDevice here(stream.device);
  auto* const native = static_cast<cudaStream_t>(stream.native);
  copy_elements(from, to, native);
  if (from.device.type == DeviceType::cpu || to.device.type == DeviceType::cpu)
    cuda::check(cudaStreamSynchronize(native), "cudaStreamSynchronize (after a copy)");
}

void synchronize(Stream stream) {
  if (stream.device.type == DeviceType::cpu) return;
  const cuda::CurrentDevice here(stream.device);
  cuda::check(cudaStreamSynchronize(static_cast<cudaStream_t>(stream.native)), "cudaStreamSynchronize");
}

}  // namespace conclave
