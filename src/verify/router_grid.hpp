// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The routing problems that every router is tried on. router_grid.cpp has the rows.
#pragma once

#include <span>
#include <string>

#include "conclave/config.hpp"
#include "conclave/router.hpp"
#include "verify/problem.hpp"

namespace conclave::verify_detail {

struct RouterRow {
  std::string_view name;
  RoutingMethod method;
  std::int64_t num_experts, top_k, num_tokens;
  void (*apply)(MoeConfig& moe);  ///< What differs from the preset; null: nothing.
  bool quick;
};
std::span<const RouterRow> router_grid() noexcept;

struct RouterData {
  Problem problem;
  std::string label;  ///< "deepseek_v3 groups f32 E8 k2 M17"
  Slab logits;        ///< [M, E], a slice of wider rows
  std::optional<Slab> correction_bias, hash_table, token_ids;
  /// Rows whose logits hold infinities: which experts come first is fixed, what the weights are is not.
  std::vector<bool> infinite_row;
  RouterInput input(std::int64_t first, std::int64_t count) const;
};

RouterData make_router_data(const RouterRow& row, DType dtype, const DeviceFacts& device, std::uint64_t seed);

}  // namespace conclave::verify_detail
