// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Routing without a router: ids drawn at random, for benchmarks. What comes out of the layer then means nothing.
#pragma once

#include <vector>

#include "router/rule.hpp"
#include "router/selection.hpp"

namespace conclave::router {

class Simulator {
 public:
  explicit Simulator(const Rule& rule);
  /// top_k ids and weights of one row, before renormalisation and scale. `keys` holds E elements.
  void draw(const Rule& rule, std::uint64_t step, std::int64_t row, std::int32_t* ids, float* weights,
            SelectionKey* keys) const noexcept;

 private:
  std::vector<float> log_probability_;  ///< zipf only: of each expert, up to a constant.
};

}  // namespace conclave::router
