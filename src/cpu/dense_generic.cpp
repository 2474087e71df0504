// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a tile of a dense product. Out: its dot products in plain C++, eight sums that a compiler can keep in registers.
#include "cpu/dense_tile.hpp"
#include "cpu/variants.hpp"

namespace conclave::cpu {
namespace {

struct Lanes8 {
  static constexpr int kLanes = 8;
  static constexpr int kRows = 2;
  static constexpr int kCols = 2;
  static constexpr int kCols1 = 2;
  struct Reg {
    float lane[kLanes];
  };

  template <class F>
  static Reg each(F&& f) {
    Reg r;
    for (int l = 0; l < kLanes; ++l) r.lane[l] = f(l);
    return r;
  }
  static Reg zero() {
    return each([](int) { return 0.0F; });
  }
  static Reg load_f32(const float* from) {
    return each([=](int l) { return from[l]; });
  }
  static Reg load_bf16(const std::uint16_t* from) {
    return each([=](int l) { return bf16_to_f32(from[l]); });
  }
  static Reg load_f16(const std::uint16_t* from) {
    return each([=](int l) { return f16_to_f32(from[l]); });
  }
  static Reg multiply_add(const Reg& x, const Reg& y, const Reg& z) {
    return each([&](int l) { return z.lane[l] + x.lane[l] * y.lane[l]; });
  }
  static float sum(const Reg& x) {
    const float* v = x.lane;
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
  }
};

}  // namespace

void dense_generic(const DenseTile& tile, DType a, DType w) {
  dense_run<Lanes8>(tile, a, w);
}

}  // namespace conclave::cpu
