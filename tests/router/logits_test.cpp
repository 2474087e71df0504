// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Router logits keep f32: rounding them to bf16 would turn close experts into ties.
#include <gtest/gtest.h>

#include "conclave/error.hpp"
#include "router/run_router.hpp"

namespace conclave {
namespace {

// x . w0 = 1 and x . w1 = 1 + 2^-9, both exact in f32; in bf16 both are 1, and the tie would go to expert 0.
TEST(RouterLogits, CloseExpertsStayApart) {
  constexpr std::int64_t kHidden = 64, kExperts = 4;
  std::vector<float> x(kHidden, 0.0F), w(kHidden * kExperts, 0.0F), bias(kExperts, 0.0F);
  x[0] = 1;
  x[63] = 0x1p-9F;
  w[0] = 1;        // expert 0 sees x[0]
  w[kHidden] = 1;  // expert 1 sees x[0] and x[63]
  w[kHidden + 63] = 1;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const test::Logits hidden(x, kHidden, dtype), weight(w, kHidden, dtype, 3);
    const test::Logits shift(bias, kExperts, dtype);
    const Tensor logits(DType::f32, {1, kExperts});
    const auto executor = make_executor(2);
    router_logits(hidden.view, weight.view, ConstTensorView(shift.view.at(0)), logits, Stream::cpu(*executor));
    EXPECT_EQ(logits.as<float>()[0], 1.0F);
    EXPECT_EQ(logits.as<float>()[1], 1.0F + 0x1p-9F);
    RouterInput input;
    input.logits = logits;
    const Problem p = test::routing_problem(kExperts, 1, routing_preset(RoutingMethod::renormalize));
    EXPECT_EQ(test::route_all(p, input, 1).ids[0], 1) << name_of(dtype);
    // The bias is added in f32 too.
    bias[0] = 0x1p-8F;
    const test::Logits more(bias, kExperts, dtype);
    router_logits(hidden.view, weight.view, ConstTensorView(more.view.at(0)), logits, Stream::cpu(*executor));
    EXPECT_EQ(logits.as<float>()[0], 1.0F + 0x1p-8F);
    EXPECT_EQ(test::route_all(p, input, 1).ids[0], 0) << name_of(dtype);
    bias[0] = 0;
  }
}

TEST(RouterLogits, RefusesAStreamWithoutExecutor) {
  const test::Logits hidden({1, 2}, 2), weight({3, 4}, 2);
  const Tensor logits(DType::f32, {1, 1});
  EXPECT_THROW(router_logits(hidden.view, weight.view, std::nullopt, logits, Stream{}), Error);
}

}  // namespace
}  // namespace conclave
