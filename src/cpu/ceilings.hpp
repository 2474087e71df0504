// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What measure_cpu_ceilings() times: loops that do nothing but products, or nothing but reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "conclave/config.hpp"

namespace conclave::cpu {

/// Independent products in registers, for one thread.
struct FlopsKernel {
  const char* name;
  bool (*runs_on)(const CpuFeatures& cpu);
  double flops_per_iteration;
  void (*run)(std::int64_t iterations);
};

/// Reads [from, from + bytes) once, as `streams` interleaved sequential streams. bytes is a multiple of kReadUnit.
struct ReadKernel {
  const char* name;
  bool (*runs_on)(const CpuFeatures& cpu);
  void (*run)(const std::byte* from, std::int64_t bytes, int streams);
};

/// Divides into 1, 2, 4 or 8 streams of whole cache lines.
inline constexpr std::int64_t kReadUnit = 8 * 64;

std::span<const FlopsKernel> f32_flops_kernels() noexcept;
/// Those faster than f32 on bf16 operands; may be empty.
std::span<const FlopsKernel> bf16_flops_kernels() noexcept;
std::span<const ReadKernel> read_kernels() noexcept;

}  // namespace conclave::cpu
