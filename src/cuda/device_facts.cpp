// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Visible GPUs -> DeviceFacts, through the CUDA runtime.
#include <cuda_runtime_api.h>

#include "base/error.hpp"
#include "conclave/device.hpp"
#include "cuda/check.hpp"

namespace conclave {
namespace {

// False for a device that vanished between the count and the question.
bool read_facts(int index, DeviceFacts& facts) {
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, index) != cudaSuccess) return false;
  facts.device = Device{DeviceType::cuda, index};
  facts.name = properties.name;
  facts.num_threads = properties.multiProcessorCount;
  facts.compute_capability = 10 * properties.major + properties.minor;
  facts.l2_bytes = properties.l2CacheSize;
  return true;
}

}  // namespace

bool has_cuda_back_end() noexcept {
  return true;
}

DeviceFacts cuda_facts(int index) {
  int count = 0;
  cuda::check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  DeviceFacts facts;
  if (index < 0 || index >= count) fail(ErrorKind::unsupported, "cuda:{}: this machine has {} GPUs", index, count);
  if (!read_facts(index, facts)) fail(ErrorKind::unsupported, "cuda:{}: the driver does not describe it", index);
  return facts;
}

std::vector<DeviceFacts> cuda_devices() {
  int count = 0;
  std::vector<DeviceFacts> devices;
  if (cudaGetDeviceCount(&count) == cudaSuccess) {
    for (int index = 0; index < count; ++index) {
      DeviceFacts facts;
      if (read_facts(index, facts)) devices.push_back(facts);
    }
  }
  // The runtime keeps the last error of a thread: a missing driver must not surface in the caller's next call.
  static_cast<void>(cudaGetLastError());
  return devices;
}

}  // namespace conclave
