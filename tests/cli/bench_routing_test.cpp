// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Draws: distinct, as uneven as asked, and exactly a trace.
#include "cli/bench_routing.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "cli/bench_layer.hpp"
#include "cli/run_command.hpp"
#include "conclave/error.hpp"
#include "conclave/safetensors.hpp"

namespace conclave::cli {
namespace {

class BenchRouting : public testing::Test {
 protected:
  BenchRouting() {
    problem_.moe.num_experts = 24;
    problem_.moe.top_k = 3;
    problem_.moe.hidden_size = 8;
    problem_.moe.intermediate_size = 8;
    problem_.moe.routing = routing_preset(RoutingMethod::renormalize);
    problem_.device = cpu_facts(1);
  }
  Draws draw(const RoutingSpec& spec, std::int64_t num_tokens) {
    const Registry registry = builtin_registry();
    const auto router = registry.routers.find("router/cpu_topk")->make(PartContext{problem_, nullptr});
    return make_draws(spec, problem_, *router, {}, num_tokens, Stream::cpu(*executor_));
  }
  std::vector<double> shares(const Draws& draws) {
    std::vector<double> share(24, 0);
    const std::int64_t n = draws.ids.view().numel();
    for (std::int64_t i = 0; i < n; ++i)
      share[static_cast<std::size_t>(draws.ids.as<std::int32_t>()[i])] += 1.0 / static_cast<double>(n);
    return share;
  }
  Problem problem_;
  std::unique_ptr<Executor> executor_ = make_inline_executor();
};

TEST_F(BenchRouting, UniformIsEvenAndFresh) {
  const Draws draws = draw(parse_routing("uniform", problem_.moe, ""), 50);
  for (const double share : shares(draws)) EXPECT_NEAR(share, 1.0 / 24, 0.01);
  EXPECT_GE(draws.size(), 8);
  EXPECT_NE(std::memcmp(draws.ids.view().at(0).data, draws.ids.view().at(1).data, 50 * 3 * 4), 0);
  for (const Load& load : draws.loads) EXPECT_EQ(load.rows, 150);
}

TEST_F(BenchRouting, ZipfPrefersLowIds) {
  const std::vector<double> share = shares(draw(parse_routing("zipf:1.2", problem_.moe, ""), 50));
  EXPECT_GT(share[0], 2 * share[4]);
  EXPECT_GT(share[4], 2 * share[23]);
  EXPECT_NEAR(std::accumulate(share.begin(), share.end(), 0.0), 1.0, 1e-9);
}

TEST_F(BenchRouting, ATraceIsFollowedInOrder) {
  const TemporaryFolder folder;
  const Tensor ids(DType::i32, {7, 3});
  for (int i = 0; i < 21; ++i) ids.as<std::int32_t>()[i] = (i * 5) % 24;
  write_safetensors(folder / "t", {{"other.topk_weights", Tensor(DType::f32, {7, 3})}, {"b.topk_ids", ids}});
  const Draws draws = draw(parse_routing("trace:" + (folder / "t"), problem_.moe, "b"), 4);
  for (std::int64_t d = 0; d < draws.size(); ++d) {
    const std::int32_t* row = draws.ids.view().at(d).as<std::int32_t>();
    std::int64_t start = -1;
    for (std::int64_t r = 0; r < 7; ++r)
      if (std::equal(row, row + 3, ids.as<std::int32_t>() + 3 * r)) start = r;
    ASSERT_GE(start, 0);
    for (std::int64_t m = 0; m < 4; ++m)
      ASSERT_TRUE(std::equal(row + 3 * m, row + 3 * m + 3, ids.as<std::int32_t>() + 3 * ((start + m) % 7)));
  }
  EXPECT_THROW(parse_routing("trace:" + (folder / "t"), problem_.moe, "c"), Error);
  problem_.moe.num_experts = 20;
  EXPECT_THROW(parse_routing("trace:" + (folder / "t"), problem_.moe, "b"), Error) << "id 20 and more";
}

TEST_F(BenchRouting, RefusesOtherTexts) {
  for (const char* text : {"", "zipf", "zipf:", "zipf:x", "zipf:-1", "even", "trace:/nonexistent"})
    EXPECT_THROW(parse_routing(text, problem_.moe, ""), Error) << text;
}

TEST_F(BenchRouting, WorkOfADraw) {
  MoeConfig& c = problem_.moe;
  c.hidden_size = 10;
  c.intermediate_size = 6;
  problem_.device.bytes_per_second = 1e6;
  problem_.device.bf16_flops = 1e9;
  const Work work = work_of(problem_, {2, 5, 4}, 3);
  EXPECT_EQ(work.weight_bytes, 2 * (3 * 10 * 6) * 2);
  EXPECT_EQ(work.flops, 2 * 5 * 3 * 10 * 6);
  EXPECT_EQ(work.activation_bytes, 3 * (2 * 10 * 2 + 4 * 24));
  EXPECT_TRUE(work.memory_bound);
  EXPECT_NEAR(work.floor_us, work.weight_bytes + work.activation_bytes, 1e-9);
  problem_.device.bf16_flops = 1e3;
  EXPECT_FALSE(work_of(problem_, {2, 5, 4}, 3).memory_bound);
  c.shared.intermediate_size = 7;
  EXPECT_EQ(work_of(problem_, {2, 5, 4}, 3).weight_bytes, (2 * (3 * 10 * 6) + 3 * 10 * 7) * 2);
}

}  // namespace
}  // namespace conclave::cli
