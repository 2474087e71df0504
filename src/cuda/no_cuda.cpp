// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The CUDA toolkit of a build without CUDA: no devices.
#include "cuda/device_facts.hpp"

namespace conclave {

std::vector<DeviceFacts> cuda_devices() {
  return {};
}

}  // namespace conclave
