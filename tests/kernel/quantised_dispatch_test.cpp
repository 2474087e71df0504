// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Quantised before it travels or after: the same bits, on one rank and on several, in whatever layout the experts want
// their scales.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernel/rank_fixture.hpp"
#include "support/message_of.hpp"

namespace conclave {
namespace {

using K = QuantKey;

/// Reference experts that ask for what a test wants, and note what they get.
struct Wish {
  bool defer = false;
  ScaleLayout layout = ScaleLayout::row_major;
};
struct Seen {
  DType dtype = DType::f64;
  bool scales = false;
  std::int64_t scale_stride = 0;  ///< Between the scales of one row.
};

class WishingExperts final : public ModularExperts {
 public:
  WishingExperts(std::unique_ptr<Experts> inner, Wish wish, Seen* seen)
      : inner_(static_cast<ModularExperts*>(inner.release())), wish_(wish), seen_(seen) {}
  const std::string& name() const noexcept override { return inner_->name(); }
  ActivationFormat activation_format() const noexcept override { return inner_->activation_format(); }
  ExpertOutputKind output_kind() const noexcept override { return inner_->output_kind(); }
  bool expects_unquantized_inputs() const noexcept override { return wish_.defer; }
  ScaleLayout activation_scale_layout() const noexcept override { return wish_.layout; }
  bool supports_expert_map() const noexcept override { return inner_->supports_expert_map(); }
  WeightAndReduceKind finalize_weight_and_reduce() const noexcept override {
    return inner_->finalize_weight_and_reduce();
  }
  std::unique_ptr<PackedWeights> pack(const ExpertWeights& w, Stream s) const override { return inner_->pack(w, s); }
  void update(PackedWeights& p, const ExpertWeights& w, Stream s) const override { inner_->update(p, w, s); }
  ExpertsBuffers take_buffers(Arena& arena, std::int64_t n) const override { return inner_->take_buffers(arena, n); }
  std::string describe(std::int64_t n) const override { return inner_->describe(n); }
  void apply(const ExpertsInput& input, const PackedWeights& weights, const ExpertsBuffers& buffers,
             Stream stream) const override {
    if (seen_ != nullptr)
      *seen_ = {input.hidden_states.dtype, input.scales.has_value(), input.scales ? input.scales->stride(-1) : 0};
    inner_->apply(input, weights, buffers, stream);
  }

 private:
  std::unique_ptr<ModularExperts> inner_;
  Wish wish_;
  Seen* seen_;
};

struct Way {
  const char* ends;
  const char* experts;
  All2All all2all;
};
constexpr Way kWays[] = {
    {"dispatch/all_to_all", "experts/reference_standard", All2All::all_to_all},
    {"dispatch/allgather_reducescatter", "experts/reference_standard", All2All::allgather_reducescatter},
    {"dispatch/low_latency", "experts/naive_batched", All2All::low_latency},
    {"dispatch/low_latency", "experts/reference_batched", All2All::low_latency}};

test::RankCase quantised_case(int num_ranks, QuantKey key, DType dtype, bool weight_on_input) {
  test::RankCase c;
  MoeConfig moe;
  moe.num_experts = 5;
  moe.top_k = weight_on_input ? 1 : 3;
  moe.hidden_size = 160;  // A short last block of 128 or 64, whole groups of 32.
  moe.intermediate_size = 64;
  moe.dtype = moe.weight_dtype = dtype;
  moe.apply_router_weight_on_input = weight_on_input;
  c.first = {0};
  for (int r = 0; r < num_ranks; ++r) c.first.push_back(c.first.back() + (r == 1 ? 0 : 3 + r));
  moe.max_num_tokens = c.first.back();
  c.whole = test::make_expert_case(moe, c.first.back(), 5);
  c.whole.problem.quant.activations = key;
  if (!weight_on_input) c.whole.topk_ids.as<std::int32_t>()[1] = c.whole.topk_ids.as<std::int32_t>()[0];
  return c;
}

/// The joined output; what rank 0's experts saw.
Tensor run_way(const test::RankCase& c, const Way& way, Wish wish, Seen& seen) {
  const Registry registry = builtin_registry();
  Tensor output = test::poisoned_tensor(c.whole.moe().dtype, {c.first.back(), c.whole.moe().hidden_size});
  run_ranks(c.num_ranks(), [&](Communicator& communicator) {
    const int rank = communicator.rank();
    auto executor = make_inline_executor();
    const Problem p = c.problem_of(rank, way.all2all);
    const PartContext context{p, nullptr, &communicator};
    FusedMoeKernel kernel(p, registry.prepare_finalizes.find(way.ends)->make(context),
                          std::make_unique<WishingExperts>(registry.experts.find(way.experts)->make(context), wish,
                                                           rank == 0 ? &seen : nullptr));
    const ShardedWeights weights = shard_weights(p.moe, c.whole.weights, p.parallel);
    const auto packed = kernel.experts().pack(weights.experts, Stream::cpu(*executor));
    KernelInput input = test::rows_of_case(c.whole, c.begin(rank), c.count(rank));
    const Tensor map = expert_map_tensor(p.moe, p.parallel);
    input.expert_map = ConstTensorView(map);
    test::run_kernel(kernel, input, *packed, output.view().narrow(0, c.begin(rank), c.count(rank)), *executor);
  });
  return output;
}

class QuantisedDispatch : public ::testing::TestWithParam<K> {};

TEST_P(QuantisedDispatch, HasTheBitsOfQuantisingAfterwards) {
  const K key = GetParam();
  for (const bool weight_on_input : {false, true})
    for (const Way& way : kWays) {
      const test::RankCase c = quantised_case(3, key, weight_on_input ? DType::f32 : DType::bf16, weight_on_input);
      const std::string label = std::string(way.ends) + " + " + way.experts + " " + std::string(name_of(key));
      Seen seen;
      const Tensor after = run_way(c, way, {.defer = true}, seen);
      EXPECT_EQ(seen.dtype, c.whole.moe().dtype) << label;
      EXPECT_FALSE(seen.scales) << label;
      for (const ScaleLayout layout : {ScaleLayout::row_major, ScaleLayout::column_major}) {
        const Tensor before = run_way(c, way, {.layout = layout}, seen);
        EXPECT_TRUE(test::same_bytes(before, after)) << label << " " << name_of(layout);
        EXPECT_EQ(bits_of(seen.dtype), 8) << label;
        EXPECT_TRUE(seen.scales) << label;
        EXPECT_EQ(seen.scale_stride == 1, layout == ScaleLayout::row_major) << label;
      }
      if (way.all2all != All2All::low_latency) continue;
      EXPECT_TRUE(test::same_bytes(after, test::run_alone(c, way.experts, "dispatch/no_ep_batched"))) << label;
    }
}

INSTANTIATE_TEST_SUITE_P(Keys, QuantisedDispatch,
                         ::testing::Values(K::fp8_token, K::fp8_block128, K::fp8_block64, K::mxfp8, K::mxfp4,
                                           K::int8_token));

/// A scale that the checkpoint has for each expert is applied where that expert is.
TEST(QuantisedDispatchRefusals, ScalesOfExpertsAreNotForPrepare) {
  test::RankCase c = quantised_case(2, K::fp8_tensor, DType::bf16, false);
  Seen seen;
  EXPECT_THAT(test::message_of([&] { run_way(c, kWays[0], {.defer = false}, seen); }),
              ::testing::HasSubstr("takes activations quantised as fp8_tensor, and dispatch/all_to_all passes them"));
}

}  // namespace
}  // namespace conclave
