// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
#include <gtest/gtest.h>

#include "conclave/error.hpp"
#include "dispatch/dispatch_list.hpp"
#include "support/expert_case.hpp"

namespace conclave {
namespace {

std::unique_ptr<MonolithicPrepareFinalize> make() {
  Problem problem;
  problem.moe = test::small_config();
  return test::make_dispatch<MonolithicPrepareFinalize>("dispatch/no_ep_monolithic", problem);
}

TEST(NoEpMonolithic, PassesBothTensorsThrough) {
  const auto executor = make_inline_executor();
  const Tensor x = test::random_tensor(DType::f32, {3, 19}, 1);
  const Tensor logits = test::random_tensor(DType::f32, {3, 5}, 2);
  Arena arena(std::span<std::byte>(), Device{});
  const PreparedMonolithic p = make()->prepare(x, logits, false, arena, Stream::cpu(*executor));
  EXPECT_EQ(p.activations.data, x.view().data);
  EXPECT_EQ(p.router_logits.data, logits.view().data);
  const Tensor fewer = test::random_tensor(DType::f32, {2, 5}, 2);
  EXPECT_THROW(make()->prepare(x, fewer, false, arena, Stream::cpu(*executor)), Error);
}

TEST(NoEpMonolithic, FinalizeTakesReducedRowsOnly) {
  const auto executor = make_inline_executor();
  ExpertOutput rows;
  const Tensor values = test::random_tensor(DType::f32, {3, 19}, 1);
  rows.rows = values;
  const Tensor out = test::poisoned_tensor(DType::f32, {3, 19});
  make()->finalize(rows, out, Stream::cpu(*executor));
  EXPECT_TRUE(test::same_bytes(out, values));
  rows.kind = ExpertOutputKind::unreduced_standard;
  EXPECT_THROW(make()->finalize(rows, out, Stream::cpu(*executor)), Error);
}

}  // namespace
}  // namespace conclave
