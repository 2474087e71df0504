// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// A quantised matrix whose views were checked once: rows of it as f32, without allocating.
#pragma once

#include "quant/format.hpp"

namespace conclave::quant {

/// Throws Error naming the first view that is not as shapes_of() says.
void check_matrix(const ConstQuantMatrix& m);

/// Row `row` as f32; out holds m.cols values. `f` is format_of(m.key, m.role), and m was checked.
void dequantise_row(const Format& f, const ConstQuantMatrix& m, std::int64_t row, float* out) noexcept;

}  // namespace conclave::quant
