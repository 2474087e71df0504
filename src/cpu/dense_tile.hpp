// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The dot products of dense(), written once for any vector type. V names a register of V::kLanes floats with zero,
// load_f32, load_bf16, load_f16, multiply_add and sum.
// Lane l of a dot product adds the products k = l, l + lanes, ... in that order and the lanes are added at the end, in
// every tile shape alike: a row gives the same bits alone and in a batch.
//
// Files of one instruction set include this: no function of a library may be instantiated here, or the linker might
// keep the copy with instructions that another processor lacks. V is local to its file, and with it everything below.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cpu/dense.hpp"

namespace conclave::cpu {

template <DType T>
using DenseElement = std::conditional_t<T == DType::f32, float, std::uint16_t>;

template <class V, DType T>
typename V::Reg load_lanes(const DenseElement<T>* from) {
  if constexpr (T == DType::f32) {
    return V::load_f32(from);
  } else if constexpr (T == DType::bf16) {
    return V::load_bf16(from);
  } else {
    return V::load_f16(from);
  }
}

/// The last `count` < lanes elements; the other lanes are 0 and add 0 * 0.
template <class V, DType T>
typename V::Reg load_tail(const DenseElement<T>* from, std::int64_t count) {
  DenseElement<T> padded[V::kLanes] = {};
  std::memcpy(padded, from, static_cast<std::size_t>(count) * sizeof(*from));
  return load_lanes<V, T>(padded);
}

template <class V, DType TA, DType TW, int Rows, int Cols>
void dense_dots(const DenseTile& t, std::int64_t m, std::int64_t n) {
  const DenseElement<TA>* a[Rows];
  const DenseElement<TW>* w[Cols];
  for (int i = 0; i < Rows; ++i) a[i] = static_cast<const DenseElement<TA>*>(t.a) + (m + i) * t.a_stride;
  for (int j = 0; j < Cols; ++j) w[j] = static_cast<const DenseElement<TW>*>(t.w) + (n + j) * t.w_stride;
  typename V::Reg sum[Rows][Cols];
  for (int i = 0; i < Rows; ++i)
    for (int j = 0; j < Cols; ++j) sum[i][j] = V::zero();

  const auto step = [&](auto load_a, auto load_w) {
    typename V::Reg x[Rows];
#pragma GCC unroll 4
    for (int i = 0; i < Rows; ++i) x[i] = load_a(a[i]);
#pragma GCC unroll 8
    for (int j = 0; j < Cols; ++j) {
      const typename V::Reg y = load_w(w[j]);
#pragma GCC unroll 4
      for (int i = 0; i < Rows; ++i) sum[i][j] = V::multiply_add(x[i], y, sum[i][j]);
    }
  };
  std::int64_t k = 0;
  for (; k + V::kLanes <= t.k; k += V::kLanes) {
    step([k](const auto* p) { return load_lanes<V, TA>(p + k); },
         [k](const auto* p) { return load_lanes<V, TW>(p + k); });
  }
  if (const std::int64_t rest = t.k - k; rest > 0) {
    step([=](const auto* p) { return load_tail<V, TA>(p + k, rest); },
         [=](const auto* p) { return load_tail<V, TW>(p + k, rest); });
  }
  for (int i = 0; i < Rows; ++i)
    for (int j = 0; j < Cols; ++j) t.out[(m + i) * t.out_stride + n + j] = V::sum(sum[i][j]);
}

template <class V, DType TA, DType TW, int Rows, int Cols>
void dense_rows(const DenseTile& t, std::int64_t m) {
  std::int64_t n = t.n0;
  for (; n + Cols <= t.n1; n += Cols) dense_dots<V, TA, TW, Rows, Cols>(t, m, n);
  for (; n < t.n1; ++n) dense_dots<V, TA, TW, Rows, 1>(t, m, n);
}

/// V::kRows x V::kCols fills the registers; one row takes V::kCols1 columns, to have enough independent additions in
/// flight and enough streams of memory.
template <class V, DType TA, DType TW>
void dense_block(const DenseTile& t) {
  std::int64_t m = t.m0;
  for (; m + V::kRows <= t.m1; m += V::kRows) dense_rows<V, TA, TW, V::kRows, V::kCols>(t, m);
  for (; m + 2 <= t.m1; m += 2) dense_rows<V, TA, TW, 2, V::kCols>(t, m);
  for (; m < t.m1; ++m) dense_rows<V, TA, TW, 1, V::kCols1>(t, m);
}

template <class V, DType TA>
void dense_by_weight(const DenseTile& t, DType w) {
  if (w == DType::f32) return dense_block<V, TA, DType::f32>(t);
  if (w == DType::bf16) return dense_block<V, TA, DType::bf16>(t);
  dense_block<V, TA, DType::f16>(t);
}

template <class V>
void dense_run(const DenseTile& t, DType a, DType w) {
  if (a == DType::f32) return dense_by_weight<V, DType::f32>(t, w);
  if (a == DType::bf16) return dense_by_weight<V, DType::bf16>(t, w);
  dense_by_weight<V, DType::f16>(t, w);
}

}  // namespace conclave::cpu
