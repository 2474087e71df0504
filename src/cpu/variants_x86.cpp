// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Which variants a build for x86-64 has, best first, and what each needs of the processor.
#include <array>

#include "cpu/variants.hpp"

namespace conclave::cpu {
namespace {

constexpr bool has_amx_bf16(const CpuFeatures& cpu) {
  return cpu.amx_bf16;
}
constexpr bool has_avx512_bf16(const CpuFeatures& cpu) {
  return cpu.avx512_bf16;
}
constexpr bool has_avx512(const CpuFeatures& cpu) {
  return cpu.avx512;
}
constexpr bool has_avx2(const CpuFeatures& cpu) {
  return cpu.avx2;
}
constexpr bool always(const CpuFeatures&) {
  return true;
}

constexpr std::array kConverters{
    FloatConverters{"avx2", has_avx2, bf16_to_f32_avx2, f16_to_f32_avx2, f32_to_bf16_avx2, f32_to_f16_avx2},
    FloatConverters{"generic", always, bf16_to_f32_generic, f16_to_f32_generic, f32_to_bf16_generic,
                    f32_to_f16_generic},
};
constexpr std::array kDense{
    DenseKernel{"avx512", has_avx512, dense_avx512},
    DenseKernel{"avx2", has_avx2, dense_avx2},
    DenseKernel{"generic", always, dense_generic},
};
constexpr std::array kF32Flops{
    FlopsKernel{"avx512", has_avx512, 2.0 * 16 * kFlopsSums, multiply_add_f32_avx512},
    FlopsKernel{"avx2", has_avx2, 2.0 * 8 * kFlopsSums, multiply_add_f32_avx2},
    FlopsKernel{"generic", always, 2.0 * 4 * kFlopsSums, multiply_add_f32_generic},
};
constexpr std::array kBf16Flops{
    FlopsKernel{"amx", has_amx_bf16, 2.0 * 4 * 16 * 16 * 32, multiply_add_bf16_amx},
    FlopsKernel{"avx512_bf16", has_avx512_bf16, 2.0 * 32 * kFlopsSums, multiply_add_bf16_avx512_bf16},
};
constexpr std::array kReads{
    ReadKernel{"avx512", has_avx512, read_avx512},
    ReadKernel{"avx2", has_avx2, read_avx2},
    ReadKernel{"generic", always, read_generic},
};

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
  return kBf16Flops;
}
std::span<const ReadKernel> read_kernels() noexcept {
  return kReads;
}

}  // namespace conclave::cpu
