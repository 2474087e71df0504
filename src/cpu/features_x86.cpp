// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: CPUID, XGETBV and the kernel's grant of AMX state. Out: CpuFeatures and the brand string. x86-64 only.
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "cpu/features.hpp"

namespace conclave::cpu {
namespace {

struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(unsigned leaf, unsigned subleaf = 0) noexcept {
  Registers r;
  // Returns 0 above the highest leaf of the processor, and then leaves the registers alone.
  __get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d);
  return r;
}

bool bit(unsigned value, int position) noexcept {
  return ((value >> position) & 1U) != 0;
}

bool is_intel() noexcept {
  const Registers r = cpuid(0);
  return r.b == 0x756E6547 && r.d == 0x49656E69 && r.c == 0x6C65746E;  // "GenuineIntel"
}

/// XCR0: which register states the system saves at a context switch. Only legal if CPUID reports OSXSAVE.
std::uint64_t extended_control_register() noexcept {
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<std::uint64_t>(high) << 32) | low;
}

/// Tile data is a state that a Linux process must ask for (arch_prctl ARCH_REQ_XCOMP_PERM, feature 18 = XTILEDATA).
bool kernel_grants_amx() noexcept {
  constexpr long kArchReqXcompPerm = 0x1023;
  constexpr long kXtileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXtileData) == 0;
}

}  // namespace

CpuFeatures detect_features() noexcept {
  CpuFeatures f;
  const Registers leaf1 = cpuid(1);
  if (!bit(leaf1.c, 27)) return f;  // OSXSAVE
  const std::uint64_t saved = extended_control_register();
  const bool saves_ymm = (saved & 0x6) == 0x6;
  const bool saves_zmm = saves_ymm && (saved & 0xE0) == 0xE0;
  const bool saves_tiles = (saved & 0x60000) == 0x60000;
  const Registers leaf7 = cpuid(7, 0);
  const Registers leaf7_1 = cpuid(7, 1);

  const bool avx_fma_f16c = bit(leaf1.c, 28) && bit(leaf1.c, 12) && bit(leaf1.c, 29);
  f.avx2 = saves_ymm && avx_fma_f16c && bit(leaf7.b, 5);
  const bool f_dq_bw_vl = bit(leaf7.b, 16) && bit(leaf7.b, 17) && bit(leaf7.b, 30) && bit(leaf7.b, 31);
  f.avx512 = f.avx2 && saves_zmm && f_dq_bw_vl;
  f.avx512_vnni = f.avx512 && bit(leaf7.c, 11);
  f.avx512_bf16 = f.avx512 && bit(leaf7_1.a, 5);
  // AVX512_FP16 came with those cores; Cooper Lake, which has neither, starts vdpbf16ps as often as other products.
  f.slow_avx512_bf16 = f.avx512_bf16 && is_intel() && bit(leaf7.d, 23);
  const bool tiles = f.avx512_bf16 && saves_tiles && bit(leaf7.d, 24) && kernel_grants_amx();
  f.amx_bf16 = tiles && bit(leaf7.d, 22);
  f.amx_int8 = tiles && bit(leaf7.d, 25);
  return f;
}

std::string brand_name() {
  if (cpuid(0x80000000).a < 0x80000004) return "unknown CPU";
  std::array<char, 49> text{};
  for (unsigned i = 0; i < 3; ++i) {
    const Registers r = cpuid(0x80000002 + i);
    const std::array<unsigned, 4> words{r.a, r.b, r.c, r.d};
    std::memcpy(text.data() + 16 * i, words.data(), 16);
  }
  const std::string name(text.data());
  const std::size_t first = name.find_first_not_of(' ');
  if (first == std::string::npos) return "unknown CPU";
  return name.substr(first, name.find_last_not_of(' ') - first + 1);
}

}  // namespace conclave::cpu
