// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// A dense product for small matrices that are not worth packing, on a GPU: out = a . w^T + bias, accumulated in f32.
#pragma once

#include <optional>

#include "conclave/stream.hpp"

namespace conclave::cuda {

/// out[m, n] = sum_k a[m, k] * w[n, k] + bias[n], rounded once to out's dtype. a [M, K], w [N, K], bias [N], out [M,
/// N]: f32, bf16 or f16, each its own. Rows may be strided, columns are contiguous, all on the stream's GPU. Neither
/// allocates nor waits. The order of additions depends on nothing but K and the dtypes, so neither do the bits.
void dense(const ConstTensorView& a, const ConstTensorView& w, const std::optional<ConstTensorView>& bias,
           const TensorView& out, Stream stream);

}  // namespace conclave::cuda
