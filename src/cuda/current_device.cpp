// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The runtime's notion of a current device, restored at the end of a scope.
#include "cuda/current_device.hpp"

#include <cuda_runtime_api.h>

#include "cuda/check.hpp"

namespace conclave::cuda {

CurrentDevice::CurrentDevice(Device device) {
  if (device.type == DeviceType::cpu) return;
  int before = 0;
  check(cudaGetDevice(&before), "cudaGetDevice");
  if (before == device.index) return;
  check(cudaSetDevice(device.index), "cudaSetDevice");
  before_ = before;
}

CurrentDevice::~CurrentDevice() {
  if (before_ >= 0) static_cast<void>(cudaSetDevice(before_));
}

}  // namespace conclave::cuda
