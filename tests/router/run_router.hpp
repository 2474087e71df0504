// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Runs one router on plain vectors: scratch of exactly the planned size, everything poisoned, guarded and run twice.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "conclave/registry.hpp"
#include "cpu/float_convert.hpp"
#include "support/cpu_parts.hpp"

namespace conclave {

std::vector<Entry<Router>> builtin_router();

namespace test {

/// Built-in routers that run on the CPU, best first.
inline std::vector<Entry<Router>> routers_on_cpu() {
  return cpu_parts(builtin_router());
}

struct RouterResult {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;

  std::vector<std::int32_t> ids_of(std::int64_t row, std::int64_t slots) const {
    return {ids.begin() + row * slots, ids.begin() + (row + 1) * slots};
  }
  std::vector<float> weights_of(std::int64_t row, std::int64_t slots) const {
    return {weights.begin() + row * slots, weights.begin() + (row + 1) * slots};
  }
};

/// A problem of E experts and k picks routed by `routing`.
inline Problem routing_problem(std::int64_t num_experts, std::int64_t top_k, RoutingConfig routing, int threads = 2) {
  Problem p;
  p.moe.num_experts = num_experts;
  p.moe.top_k = top_k;
  p.moe.routing = routing;
  p.device.num_threads = threads;
  return p;
}

/// Logits [M, E] in `dtype` with rows `padding` elements apart; the padding is NaN.
struct Logits {
  Tensor memory;
  ConstTensorView view;

  Logits(const std::vector<float>& values, std::int64_t num_experts, DType dtype = DType::f32,
         std::int64_t padding = 0) {
    const auto rows = static_cast<std::int64_t>(values.size()) / num_experts;
    memory = Tensor(dtype, {rows, num_experts + padding});
    const std::vector<float> nan(static_cast<std::size_t>(num_experts + padding), NAN);
    for (std::int64_t m = 0; m < rows; ++m) {
      cpu::store_row_f32(nan.data(), memory.view().at(m));
      cpu::store_row_f32(values.data() + m * num_experts, memory.view().narrow(1, 0, num_experts).at(m));
    }
    view = memory.view().narrow(1, 0, num_experts);
  }
};

/// `num_rows` is needed only where there are no logits.
inline RouterResult run_once(const Router& router, const Problem& problem, const RouterInput& input,
                             std::int64_t num_rows, Executor& executor) {
  const std::int64_t slots = problem.moe.num_slots();
  constexpr std::int64_t kGuard = 2;
  Tensor ids(DType::i32, {num_rows, slots + kGuard}), weights(DType::f32, {num_rows, slots + kGuard});
  std::memset(ids.storage()->data(), 0xFF, static_cast<std::size_t>(ids.storage()->bytes()));
  std::memset(weights.storage()->data(), 0xFF, static_cast<std::size_t>(weights.storage()->bytes()));
  Arena measuring = Arena::measuring();
  router.plan_scratch(measuring, num_rows);
  const auto size = static_cast<std::size_t>(measuring.peak());
  Tensor scratch(DType::u8, {measuring.peak() + 64});
  std::memset(scratch.as<std::byte>(), 0xFF, size + 64);
  Arena arena({scratch.as<std::byte>(), size}, Device{});
  router.route(input, {ids.view().narrow(1, 0, slots), weights.view().narrow(1, 0, slots)}, arena,
               Stream::cpu(executor));
  for (std::size_t i = 0; i < 64; ++i)
    EXPECT_EQ(scratch.as<std::uint8_t>()[size + i], 0xFF) << "wrote behind its scratch";
  RouterResult result;
  for (std::int64_t m = 0; m < num_rows; ++m) {
    const std::int32_t* row_ids = ids.as<std::int32_t>() + m * (slots + kGuard);
    const float* row_weights = weights.as<float>() + m * (slots + kGuard);
    result.ids.insert(result.ids.end(), row_ids, row_ids + slots);
    result.weights.insert(result.weights.end(), row_weights, row_weights + slots);
    EXPECT_EQ(row_ids[slots], -1) << "wrote behind a row of ids";
    EXPECT_TRUE(std::isnan(row_weights[slots])) << "wrote behind a row of weights";
  }
  return result;
}

inline RouterResult run_router(const Entry<Router>& entry, const Problem& problem, const RouterInput& input,
                               std::int64_t num_rows, int threads = 2) {
  const Support support = entry.supports(problem);
  EXPECT_TRUE(support) << entry.name << ": " << support.reason();
  const auto executor = make_executor(threads);
  const std::unique_ptr<Router> router = entry.make({problem, nullptr});
  EXPECT_EQ(router->name(), entry.name);
  RouterResult first = run_once(*router, problem, input, num_rows, *executor);
  const RouterResult second = run_once(*router, problem, input, num_rows, *executor);
  EXPECT_EQ(first.ids, second.ids);
  EXPECT_EQ(std::memcmp(first.weights.data(), second.weights.data(), first.weights.size() * sizeof(float)), 0);
  return first;
}

/// Both routers of the library; they must agree bit by bit.
inline RouterResult route_all(const Problem& problem, const RouterInput& input, std::int64_t num_rows) {
  std::optional<RouterResult> all;
  for (const Entry<Router>& entry : routers_on_cpu()) {
    RouterResult result = run_router(entry, problem, input, num_rows);
    if (all) {
      EXPECT_EQ(all->ids, result.ids) << entry.name;
      EXPECT_EQ(std::memcmp(all->weights.data(), result.weights.data(), result.weights.size() * sizeof(float)), 0)
          << entry.name << " has other weights";
    }
    all = std::move(result);
  }
  return *all;
}

inline RouterResult route_all(const Problem& problem, const std::vector<float>& logits,
                              const std::vector<float>& bias = {}, DType dtype = DType::f32, std::int64_t padding = 0) {
  const Logits matrix(logits, problem.moe.num_experts, dtype, padding);
  RouterInput input;
  input.logits = matrix.view;
  if (!bias.empty()) input.e_score_correction_bias = ConstTensorView(bias.data(), DType::f32, {std::ssize(bias)});
  return route_all(problem, input, matrix.view.size(0));
}

}  // namespace test
}  // namespace conclave
