// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a MoeOutput. Out: some columns of one token's routed * s + shared, in f32.
#pragma once

#include <cstdint>

#include "conclave/flow.hpp"

namespace conclave::tail {

/// Columns at a time: two f32 buffers of this many stay in the first-level cache.
inline constexpr std::int64_t kChunk = 512;

/// Below this many products a parallel region costs more than the work.
inline constexpr std::int64_t kProductsWorthThreads = 16384;

/// sum[i] = column h + i of token `token`, n <= kChunk. Picks are added in the order of k; -1 and zero weights are
/// skipped, so that 0 * NaN cannot leak. Throws Error where the map points past the rows.
void open_sum(const MoeOutput& moe, std::int64_t token, std::int64_t h, std::int64_t n, float* sum);

/// Products in one row of open_sum.
std::int64_t picks_of(const MoeOutput& moe) noexcept;

}  // namespace conclave::tail
