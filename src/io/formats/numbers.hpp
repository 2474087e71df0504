// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: stored scales of any float type. Out: checked ones.
#pragma once

#include "io/formats/weight_format.hpp"

namespace conclave {

/// f32, bf16, f16, e8m0 and e4m3, the last two also as u8 where `means` says so. Flat index of a contiguous view.
float number_at(const ConstTensorView& view, DType means, std::int64_t index);

float rounded_to_bf16(float value) noexcept;
/// Element `index` of an f32 or bf16 tensor := a number that it can hold.
void store_number(float value, const Tensor& to, std::int64_t index);

/// Value `index` of tensor `spec`, which scales codes: throws Error(bad_file) if it is NaN, infinite or negative.
float checked_scale(const StoredProjection& from, std::size_t spec, DType means, std::int64_t index);

/// All of them in the order of the file, as f32 or, where `out` has one-byte elements, as the bytes they are.
void read_scales(const StoredProjection& from, std::size_t spec, DType means, const TensorView& out);

}  // namespace conclave
