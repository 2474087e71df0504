// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// A part that computes on codes -> the same part at each type of activations: what it reads hidden states from, and
// what it rounds the output to.
#pragma once

#include <type_traits>

#include "experts/cpu/row_ops.hpp"

namespace conclave::experts::grouped {
namespace {

/// The rows' two ends for one type of activations.
template <class Part, DType Type>
struct WithSource : Part {
  using Vec = typename Part::Simd::Vec;
  using Source = std::conditional_t<Type == DType::f32, float, std::uint16_t>;

  static Vec load_source(const Source* p) {
    if constexpr (Type == DType::f32) return Part::load(p);
    if constexpr (Type == DType::bf16) return Part::load_bf16(p);
    if constexpr (Type == DType::f16) return Part::load_f16(p);
  }
  static void store_source(Source* p, Vec v) {
    if constexpr (Type == DType::f32) Part::store(p, v);
    if constexpr (Type == DType::bf16) Part::store_bf16(p, v);
    if constexpr (Type == DType::f16) Part::store_f16(p, v);
  }
};

/// run<Part with that type of activations>().
template <class Part, class Run>
[[gnu::always_inline]] inline void with_source(DType dtype, Run&& run) {
  if (dtype == DType::f32) return run.template operator()<WithSource<Part, DType::f32>>();
  if (dtype == DType::bf16) return run.template operator()<WithSource<Part, DType::bf16>>();
  run.template operator()<WithSource<Part, DType::f16>>();
}

/// For parts with a type of their own.
template <class Part>
void combine_to_f32_or(const CombineTask& task) {
  if (task.dtype == DType::f32) return RowOps<WithSource<Part, DType::f32>>::combine(task);
  RowOps<Part>::combine(task);
}

template <class Part>
void combine_to_any_type(const CombineTask& task) {
  with_source<Part>(task.dtype, [&]<class Sourced>() { RowOps<Sourced>::combine(task); });
}

/// What a part is called, and on what it runs.
struct CodesLabel {
  const char* name;
  const char* unit;
  bool CpuFeatures::*feature;
  const char* feature_name;
};

inline constexpr DType kAnyType[] = {DType::f32, DType::bf16, DType::f16};

}  // namespace
}  // namespace conclave::experts::grouped
