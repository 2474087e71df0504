// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a device. While the object lives, it is the calling thread's current GPU; nothing happens for the CPU.
#pragma once

#include "conclave/tensor.hpp"

namespace conclave::cuda {

/// Launches and allocations go to the thread's current GPU, whatever stream they name.
class CurrentDevice {
 public:
  /// Throws Error(unsupported) where there is no such device.
  explicit CurrentDevice(Device device);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = -1;  ///< -1: nothing to restore.
};

}  // namespace conclave::cuda
