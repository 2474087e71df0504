// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The error of check.hpp.
#include "cuda/check.hpp"

#include "base/error.hpp"

namespace conclave::cuda {

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  // The runtime keeps the last error of a thread: the next call must not report this one again.
  static_cast<void>(cudaGetLastError());
  const bool memory = status == cudaErrorMemoryAllocation;
  const bool no_device = status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver ||
                         status == cudaErrorInvalidDevice || status == cudaErrorNoKernelImageForDevice;
  fail(memory      ? ErrorKind::out_of_memory
       : no_device ? ErrorKind::unsupported
                   : ErrorKind::invalid_argument,
       "{}: {} ({})", call, cudaGetErrorString(status), cudaGetErrorName(status));
}

}  // namespace conclave::cuda
