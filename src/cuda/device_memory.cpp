// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// base/device_memory.hpp through the CUDA runtime.
#include "base/device_memory.hpp"

#include <cuda_runtime_api.h>

#include "base/error.hpp"
#include "base/tensor_format.hpp"
#include "cuda/check.hpp"
#include "cuda/current_device.hpp"

namespace conclave::device_memory {

std::byte* allocate(Device device, std::int64_t bytes) {
  const cuda::CurrentDevice here(device);
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, static_cast<std::size_t>(bytes));
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    fail(ErrorKind::out_of_memory, "{}: cannot allocate {} bytes", device, bytes);
  }
  cuda::check(status, "cudaMalloc");
  return static_cast<std::byte*>(data);
}

void release(Device, std::byte* data) noexcept {
  // At the end of a process the driver may be gone already; there is nobody to tell.
  static_cast<void>(cudaFree(data));
}

void fill(Device device, std::byte* data, int value, std::int64_t bytes) noexcept {
  int before = 0;
  static_cast<void>(cudaGetDevice(&before));
  static_cast<void>(cudaSetDevice(device.index));
  static_cast<void>(cudaMemset(data, value, static_cast<std::size_t>(bytes)));
  static_cast<void>(cudaDeviceSynchronize());
  static_cast<void>(cudaSetDevice(before));
}

}  // namespace conclave::device_memory
