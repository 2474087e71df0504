// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What every CPU router does alike: checks, rows to f32, scores, weights, hash tables, custom and simulated routing.
// A variant adds how ids are chosen from scores, and over how many threads.
#pragma once

#include <string>

#include "conclave/router.hpp"
#include "router/rule.hpp"
#include "router/selection.hpp"
#include "router/simulated.hpp"

namespace conclave::router {

/// Scratch of one thread, for one row at a time.
struct RowScratch {
  float* logits;         ///< [E]
  float* scores;         ///< [E]
  float* values;         ///< [E]
  SelectionKey* keys;    ///< [E]
  SelectionKey* groups;  ///< [num_expert_group]
};

class RowRouter : public Router {
 public:
  RowRouter(std::string name, const Problem& problem, int most_threads);
  const std::string& name() const noexcept override { return name_; }
  void plan_scratch(Arena& arena, std::int64_t num_tokens) const override;
  void route(const RouterInput& input, const Routing& out, Arena& arena, Stream stream) const override;

 protected:
  /// Steps 2 and 3: top_k ids of one row, in order.
  virtual void choose(const Rule& rule, const Row& row, const RowScratch& scratch,
                      std::int32_t* ids) const noexcept = 0;

 private:
  RowScratch scratch_of(const TensorView& memory, int thread) const noexcept;
  void route_row(const RouterInput& input, std::int64_t m, const RowScratch& scratch, std::int32_t* ids,
                 float* weights) const;
  void route_custom(const RouterInput& input, const Routing& out) const;
  void look_up(const RouterInput& input, std::int64_t m, std::int32_t* ids) const;

  std::string name_;
  Rule rule_;
  Simulator simulator_;
  int most_threads_;
};

}  // namespace conclave::router
