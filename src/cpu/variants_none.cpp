// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Which variants a build for any other processor has: the portable ones.
#include <array>

#include "cpu/variants.hpp"

namespace conclave::cpu {
namespace {

constexpr bool always(const CpuFeatures&) {
  return true;
}

constexpr std::array kConverters{FloatConverters{"generic", always, bf16_to_f32_generic, f16_to_f32_generic,
                                                 f32_to_bf16_generic, f32_to_f16_generic}};
constexpr std::array kDense{DenseKernel{"generic", always, dense_generic}};
constexpr std::array kF32Flops{FlopsKernel{"generic", always, 2.0 * 4 * kFlopsSums, multiply_add_f32_generic}};
constexpr std::array kReads{ReadKernel{"generic", always, read_generic}};

}  // namespace

std::span<const FloatConverters> float_converters() noexcept {
  return kConverters;
}
std::span<const DenseKernel> dense_kernels() noexcept {
  return kDense;
}
std::span<const FlopsKernel> f32_flops_kernels() noexcept {
  return kF32Flops;
}
std::span<const FlopsKernel> bf16_flops_kernels() noexcept {
  return {};
}
std::span<const ReadKernel> read_kernels() noexcept {
  return kReads;
}

}  // namespace conclave::cpu
