// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Rows and weights in int8 codes, four products at a time. The instruction wants one side unsigned, so rows are 128
// more than they are. Its additions wrap around, as nothing else here needs: the true sum fits again.
#include <cstring>

#include "experts/cpu/integer_part.hpp"
#include "experts/cpu/simd_avx512.hpp"

namespace conclave::experts::grouped {
namespace {

struct Int8Int8Avx512Vnni : Avx512 {
  using Weight = std::uint8_t;
  using Input = std::uint8_t;
  static constexpr int kWeightGroup = 4;
  static constexpr int kSteps = 1;
  static constexpr int kInputOffset = 128;

  static Vec input(const Input* x) {
    std::int32_t four;
    std::memcpy(&four, x, sizeof(four));
    return _mm512_castsi512_ps(_mm512_set1_epi32(four));
  }
  template <int>
  static Vec weight(const Weight* w) {
    return _mm512_castsi512_ps(_mm512_loadu_si512(w));
  }
  static Vec product(Vec in, Vec w, Vec sum) {
    return _mm512_castsi512_ps(
        _mm512_dpbusd_epi32(_mm512_castps_si512(sum), _mm512_castps_si512(in), _mm512_castps_si512(w)));
  }
};

}  // namespace

extern constinit const Engine kInt8Int8Avx512Vnni = make_integer_engine<Int8Int8Avx512Vnni>(
    {"experts/cpu_int8_int8_avx512_vnni", "AVX-512 VNNI, exact products of int8 codes", &CpuFeatures::avx512_vnni,
     "AVX-512 VNNI"});

}  // namespace conclave::experts::grouped
