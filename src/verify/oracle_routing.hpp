// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The routing rule of include/conclave/routing.hpp once more, in f64 and as plainly as possible: what routers are
// compared with.
#pragma once

#include <span>
#include <vector>

#include "conclave/config.hpp"
#include "conclave/router.hpp"

namespace conclave::verify_detail {

/// Ids and weights of all tokens, [num_tokens, num_slots] flattened.
struct OracleRouting {
  std::int64_t num_slots = 0;
  std::vector<std::int64_t> ids;
  std::vector<double> weights;
};

/// One token's choice, and how clearly it was made.
struct RowChoice {
  std::vector<std::int64_t> ids;
  std::vector<double> weights;
  /// The smallest relative distance between two values whose order or threshold decided anything; exact ties do not
  /// count, because the tie rule decides them in any precision. Below about 1e-6 an f32 router may rightly differ.
  double margin = 1;
};

/// `bias` is empty where the rule has none; `table_ids` holds the ids of the hash table for this token, or is empty.
RowChoice route_row(const MoeConfig& moe, std::span<const double> logits, std::span<const double> bias,
                    std::span<const std::int64_t> table_ids);

/// Every method but custom and simulated.
OracleRouting oracle_route(const MoeConfig& moe, const RouterInput& input);

}  // namespace conclave::verify_detail
