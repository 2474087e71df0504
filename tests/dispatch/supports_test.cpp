// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
#include "dispatch/supports.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "conclave/error.hpp"
#include "dispatch/dispatch_list.hpp"
#include "support/cpu_parts.hpp"
#include "support/expert_case.hpp"

namespace conclave {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Problem small_problem() {
  Problem problem;
  problem.moe = test::small_config();
  return problem;
}

template <class Change>
std::string reason(Change change) {
  Problem problem = small_problem();
  change(problem);
  return dispatch::supports_local(problem).reason();
}

TEST(DispatchSupports, OneRankAndSplitsWithoutExchangeFit) {
  EXPECT_TRUE(dispatch::supports_local(small_problem()));
  Problem problem = small_problem();
  problem.parallel = make_parallel(4, 1, 1, 0, 1, 0, 1, false, All2All::none);
  EXPECT_TRUE(dispatch::supports_local(problem));
  problem.parallel = make_parallel(4, 1, 1, 0, 1, 0, 1, true, All2All::none);
  EXPECT_TRUE(dispatch::supports_local(problem));
}

TEST(DispatchSupports, ReasonsNameTheValue) {
  EXPECT_THAT(reason([](Problem& p) { p.device.device = {DeviceType::cuda, 0}; }), HasSubstr("cuda:0"));
  EXPECT_THAT(reason([](Problem& p) { p.quant.activations = QuantKey::int8_channel; }), HasSubstr("int8_channel"));
  EXPECT_THAT(reason([](Problem& p) { p.moe.dtype = DType::f64; }), HasSubstr("f64"));
  EXPECT_THAT(reason([](Problem& p) { p.parallel = make_parallel(2, 0, 1, 0, 3, 1, 1, true, All2All::all_to_all); }),
              AllOf(HasSubstr("use_all2all"), HasSubstr("dp_size 3"), HasSubstr("all_to_all")));
  EXPECT_THAT(reason([](Problem& p) { p.parallel.sp_size = 2; }), HasSubstr("sp_size 2"));
  EXPECT_THAT(reason([](Problem& p) { p.parallel.enable_eplb = true; }), HasSubstr("enable_eplb"));
  EXPECT_THAT(reason([](Problem& p) { p.moe.apply_router_weight_on_input = true; }),
              HasSubstr("apply_router_weight_on_input"));
}

TEST(DispatchSupports, AnExchangeMustBeAskedForByName) {
  Problem problem = small_problem();
  problem.parallel = make_parallel(1, 0, 1, 0, 4, 3, 1, true, All2All::low_latency);
  EXPECT_TRUE(dispatch::supports_exchange(problem, All2All::low_latency));
  EXPECT_EQ(dispatch::supports_exchange(problem, All2All::all_to_all).reason(),
            "all2all low_latency, it does all_to_all");
  problem.parallel = make_parallel(4, 3, 1, 0, 1, 0, 1, true, All2All::low_latency);
  EXPECT_THAT(dispatch::supports_exchange(problem, All2All::low_latency).reason(), HasSubstr("see the same tokens"));
  problem.parallel = make_parallel(4, 3, 1, 0, 1, 0, 1, false, All2All::low_latency);
  EXPECT_THAT(dispatch::supports_exchange(problem, All2All::low_latency).reason(), HasSubstr("tp_size 4"));
  problem.parallel = {};
  problem.parallel.all2all = All2All::all_to_all;
  EXPECT_TRUE(dispatch::supports_exchange(problem, All2All::all_to_all));
  problem.parallel.enable_eplb = true;
  EXPECT_THAT(dispatch::supports_exchange(problem, All2All::all_to_all).reason(), HasSubstr("enable_eplb"));
}

/// A format, a kind and a name that says what it is: selection relies on all three.
TEST(DispatchList, EntriesAgreeWithTheirParts) {
  const auto parts = test::cpu_parts(builtin_dispatch());
  EXPECT_EQ(parts.size(), 6U);
  for (const auto& entry : parts) {
    const Problem problem = small_problem();
    const auto part = entry.make({problem, nullptr});
    EXPECT_EQ(part->name(), entry.name);
    EXPECT_EQ(part->activation_format(), entry.format);
    EXPECT_EQ(part->is_monolithic(), entry.monolithic);
    EXPECT_EQ(part->num_dispatchers(), 1);
    EXPECT_EQ(part->output_is_reduced(), entry.name.find("no_ep") == std::string::npos) << entry.name;
  }
}

TEST(DispatchAsync, APartWithoutItSaysSoWithItsName) {
  const auto part = test::make_dispatch<ModularPrepareFinalize>("dispatch/no_ep_batched", small_problem());
  EXPECT_FALSE(part->supports_async());
  const auto executor = make_inline_executor();
  Arena arena = Arena::measuring();
  try {
    part->prepare_async({}, arena, Stream::cpu(*executor));
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("dispatch/no_ep_batched"), HasSubstr("does not support async")));
  }
  EXPECT_THROW(part->finalize_async({}, {}, Stream::cpu(*executor)), Error);
}

}  // namespace
}  // namespace conclave
