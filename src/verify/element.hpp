// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a view and an index. Out: one element as f64, or one element written with round-to-nearest-even. Slow and plain
// on purpose: the oracle must not share conversion code with the kernels that it judges.
#pragma once

#include <cstdint>
#include <vector>

#include "conclave/tensor.hpp"

namespace conclave::verify_detail {

/// f32, bf16, f16, f64, fp8_e4m3, e8m0 and the integer types. Throws Error for the rest. `offset` is in elements from
/// view.data.
double load(const ConstTensorView& view, std::int64_t offset);
void store(const TensorView& view, std::int64_t offset, double value);

/// Calls f(offset in elements) for each element in row-major order, whatever the strides.
template <class F>
void for_each_offset(const ConstTensorView& view, F&& f) {
  std::array<std::int64_t, kMaxRank> index{};
  const std::int64_t count = view.numel();
  for (std::int64_t n = 0; n < count; ++n) {
    std::int64_t offset = 0;
    for (int d = 0; d < view.rank; ++d) offset += index[static_cast<std::size_t>(d)] * view.stride(d);
    f(offset);
    for (int d = view.rank - 1; d >= 0; --d) {
      if (++index[static_cast<std::size_t>(d)] < view.size(d)) break;
      index[static_cast<std::size_t>(d)] = 0;
    }
  }
}

/// All elements in row-major order.
std::vector<double> to_doubles(const ConstTensorView& view);
/// A contiguous copy.
Tensor clone(const ConstTensorView& view);
/// A copy with the same strides; what lies between the rows is 0xFF (NaN).
Tensor clone_strided(const ConstTensorView& view, TensorView& copy);
/// All bytes of the tensor become 0xFF: NaN in every float type, -1 in every integer type.
void poison(const Tensor& tensor);
bool bitwise_equal(const ConstTensorView& a, const ConstTensorView& b);
/// FNV-1a over the elements' bytes.
std::uint64_t hash_of(const ConstTensorView& view);

}  // namespace conclave::verify_detail
