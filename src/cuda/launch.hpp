// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Kernel launches: grid, block, dynamic shared memory and stream as one struct, always as a programmatic dependent
// launch. A kernel started by it waits for its predecessor itself (ptx::wait_for_predecessor).
#pragma once

#include <cuda_runtime.h>

#include "cuda/check.hpp"

namespace conclave::cuda {

struct Launch {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
  unsigned cluster = 1;  ///< Blocks of one cluster along x.
};

/// True on GPUs that know dependent launch (sm_90). Asking costs less than a microsecond.
inline bool has_dependent_launch() {
  int device = 0;
  int major = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
  return major >= 9;
}

/// Allows `kernel` the dynamic shared memory that a launch will ask for, on the current device. Beyond 48 KiB this is
/// needed once for each device; it is a cheap setter, so launch() calls it each time.
template <class... Params, class... Args>
void launch(const char* name, void (*kernel)(Params...), const Launch& how, Args&&... args) {
  if (how.shared_bytes > 48 * 1024)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(how.shared_bytes)),
          name);
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (has_dependent_launch()) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (how.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim.x = how.cluster;
    attributes[count].val.clusterDim.y = 1;
    attributes[count++].val.clusterDim.z = 1;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = how.grid;
  config.blockDim = how.block;
  config.dynamicSmemBytes = how.shared_bytes;
  config.stream = how.stream;
  config.attrs = attributes;
  config.numAttrs = count;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...), name);
}

}  // namespace conclave::cuda
