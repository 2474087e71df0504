// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Replica choice: every pick lands on a slot of its expert, whatever surrounds the token, and loads spread.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "conclave/eplb.hpp"
#include "support/message_of.hpp"
#include "support/tensors.hpp"

namespace conclave {
namespace {

using ::testing::HasSubstr;

class ChooseReplicas : public ::testing::Test {
 protected:
  Tensor choose(const TensorView& ids, const TensorView& weights,
                const std::optional<ConstTensorView>& salt = std::nullopt) {
    Tensor out = test::poisoned_tensor(DType::i32, {ids.size(0), ids.size(1)});
    choose_replicas(placement_, {ids, weights}, salt, out, Stream::cpu(*executor_));
    return out;
  }
  EplbConfig config_{.num_logical = 16, .num_physical = 24, .num_ranks = 4};
  ExpertPlacement placement_ = initial_placement(config_);
  std::unique_ptr<Executor> executor_ = make_inline_executor();
};

TEST_F(ChooseReplicas, FindsASlotOfTheExpert) {
  const Tensor ids = test::random_ids(300, 4, 16, 1);
  ids.as<std::int32_t>()[5] = -1;
  ids.as<std::int32_t>()[6] = 16;
  const Tensor weights = test::random_weights(DType::f32, 300, 4, 2);
  const Tensor out = choose(ids, weights);
  for (std::int64_t i = 0; i < 1200; ++i) {
    const std::int32_t slot = out.as<std::int32_t>()[i];
    if (i == 5 || i == 6) {
      ASSERT_EQ(slot, -1);
    } else {
      ASSERT_EQ(placement_.physical_to_logical[static_cast<std::size_t>(slot)], ids.as<std::int32_t>()[i]);
    }
  }
}

TEST_F(ChooseReplicas, DoesNotDependOnTheBatchOrTheOrderOfPicks) {
  const Tensor ids = test::random_ids(64, 4, 16, 3);
  const Tensor weights = test::random_weights(DType::f32, 64, 4, 4);
  const Tensor all = choose(ids, weights);
  for (std::int64_t t = 0; t < 64; ++t) {
    const Tensor alone = choose(ids.view().narrow(0, t, 1), weights.view().narrow(0, t, 1));
    ASSERT_TRUE(test::same_bytes(alone, all.view().narrow(0, t, 1)));
    Tensor turned_ids(DType::i32, {1, 4});
    Tensor turned_weights(DType::f32, {1, 4});
    for (std::int64_t k = 0; k < 4; ++k) {
      turned_ids.as<std::int32_t>()[3 - k] = ids.as<std::int32_t>()[t * 4 + k];
      turned_weights.as<float>()[3 - k] = weights.as<float>()[t * 4 + k];
    }
    const Tensor turned = choose(turned_ids, turned_weights);
    for (std::int64_t k = 0; k < 4; ++k) ASSERT_EQ(turned.as<std::int32_t>()[3 - k], all.as<std::int32_t>()[t * 4 + k]);
  }
}

TEST_F(ChooseReplicas, SendsADuplicateToOneReplica) {
  const Tensor ids = test::tensor_of(DType::i32, {1, 3}, {2, 9, 2});
  const Tensor out = choose(ids, test::random_weights(DType::f32, 1, 3, 5));
  EXPECT_EQ(out.as<std::int32_t>()[0], out.as<std::int32_t>()[2]);
}

/// Expert 3 has two slots; tokens share them, by their weights alone (top-1), or by salt where weights are equal.
TEST_F(ChooseReplicas, SpreadsTokens) {
  constexpr std::int64_t kTokens = 1000;
  Tensor ids(DType::i32, {kTokens, 1});
  std::fill_n(ids.as<std::int32_t>(), kTokens, 3);
  const auto share = [&](const Tensor& out) {
    const auto* slots = out.as<std::int32_t>();
    return std::count(slots, slots + kTokens, 3);
  };
  const Tensor weights = test::random_weights(DType::f32, kTokens, 1, 6);
  EXPECT_NEAR(static_cast<double>(share(choose(ids, weights))), 500, 80);
  std::fill_n(weights.as<float>(), kTokens, 1.0F);
  const auto same = share(choose(ids, weights));
  EXPECT_TRUE(same == 0 || same == kTokens);
  Tensor salt(DType::i64, {kTokens});
  for (std::int64_t t = 0; t < kTokens; ++t) salt.as<std::int64_t>()[t] = t;
  EXPECT_NEAR(static_cast<double>(share(choose(ids, weights, salt.view()))), 500, 80);
}

TEST_F(ChooseReplicas, RefusesOtherShapes) {
  const Tensor ids = test::random_ids(3, 2, 16, 1);
  EXPECT_THAT(test::message_of([&] { choose(ids, test::random_weights(DType::f32, 3, 3, 1)); }),
              HasSubstr("topk_weights: given f32[3, 3], expected f32 of the shape of topk_ids i32[3, 2]"));
  const Tensor salt(DType::i64, {4});
  EXPECT_THAT(test::message_of([&] { choose(ids, test::random_weights(DType::f32, 3, 2, 1), salt.view()); }),
              HasSubstr("salt: given i64[4], expected i64 [3]"));
}

}  // namespace
}  // namespace conclave
