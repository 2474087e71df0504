// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Memory of a GPU as storage and workspaces need it. Defined in src/cuda, which lies above: device_memory.cpp, or
// no_cuda.cpp where a build has no CUDA back end.
#pragma once

#include <cstddef>
#include <cstdint>

#include "conclave/tensor.hpp"

namespace conclave::device_memory {

/// At least 256-byte aligned, contents undefined. Throws Error(out_of_memory) with the byte count, Error(unsupported)
/// without such a device.
std::byte* allocate(Device device, std::int64_t bytes);
/// Waits for work that may still use the memory. Null is legal.
void release(Device device, std::byte* data) noexcept;
/// Every byte := value. Waits until it is done.
void fill(Device device, std::byte* data, int value, std::int64_t bytes) noexcept;

}  // namespace conclave::device_memory
