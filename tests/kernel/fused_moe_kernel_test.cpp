// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The composition itself: parts that do not fit are refused, asynchronous ends are driven in order, ids of any integer
// type and weights of any float type are taken.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "conclave/kernel.hpp"
#include "conclave/registry.hpp"
#include "kernel/problems.hpp"
#include "support/oracle.hpp"

namespace conclave {
namespace {

using ::testing::HasSubstr;

template <class Part>
std::unique_ptr<Part> make(const PartList<Part>& list, const std::string& name, const Problem& p,
                           std::shared_ptr<const Router> router = nullptr) {
  return list.find(name)->make({p, std::move(router)});
}

std::string message_of_pair(const char* ends, const char* experts) {
  const Registry r = builtin_registry();
  const Problem p = test::small_problem();
  try {
    FusedMoeKernel(p, make(r.prepare_finalizes, ends, p), make(r.experts, experts, p));
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(FusedMoeKernel, RefusesPartsThatDoNotFit) {
  EXPECT_THAT(message_of_pair("dispatch/no_ep_monolithic", "experts/reference_standard"),
              HasSubstr("expected both modular or both monolithic"));
  EXPECT_THAT(message_of_pair("dispatch/no_ep_batched", "experts/reference_standard"),
              HasSubstr("produces the batched_experts format and experts/reference_standard takes the standard"));
  EXPECT_EQ(message_of_pair("dispatch/no_ep", "experts/reference_standard"), "no error");
}

TEST(FusedMoeKernel, SomebodyMustQuantise) {
  const Registry r = builtin_registry();
  const Problem plain = test::small_problem();
  Problem p = plain;
  p.quant.activations = QuantKey::fp8_tensor;  // Its scales are the experts'; prepare cannot know them.
  const auto compose = [&](const Problem& of_experts) {
    try {
      FusedMoeKernel(p, make(r.prepare_finalizes, "dispatch/no_ep", p),
                     make(r.experts, "experts/reference_standard", of_experts));
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(compose(p), "no error");
  EXPECT_THAT(compose(plain),
              HasSubstr("takes activations quantised as fp8_tensor, and dispatch/no_ep passes them on"));
}

/// Wraps a synchronous part and records the order in which the kernel drives it.
class AsyncEnds : public ModularPrepareFinalize {
 public:
  AsyncEnds(std::unique_ptr<PrepareFinalize> inner, std::vector<std::string>& events)
      : inner_(static_cast<ModularPrepareFinalize*>(inner.release())), events_(events) {}
  const std::string& name() const noexcept override { return inner_->name(); }
  bool supports_async() const noexcept override { return true; }
  void plan_scratch(Arena& arena, std::int64_t n) const override { inner_->plan_scratch(arena, n); }
  Prepared prepare(const PrepareInput&, Arena&, Stream) override { throw std::logic_error("synchronous prepare"); }
  void finalize(const FinalizeInput&, const TensorView&, Stream) override { throw std::logic_error("synchronous"); }
  Pending<Prepared> prepare_async(const PrepareInput& input, Arena& arena, Stream stream) override {
    events_.push_back("prepare launched");
    return Pending<Prepared>([this] { events_.push_back("prepare arrived"); },
                             [this, &input, &arena, stream] { return inner_->prepare(input, arena, stream); });
  }
  Pending<Done> finalize_async(const FinalizeInput& input, const TensorView& output, Stream stream) override {
    events_.push_back("finalize launched");
    return Pending<Done>([this] { events_.push_back("finalize arrived"); },
                         [this, &input, &output, stream] {
                           inner_->finalize(input, output, stream);
                           return Done{};
                         });
  }

 private:
  std::unique_ptr<ModularPrepareFinalize> inner_;
  std::vector<std::string>& events_;
};

class Run : public ::testing::Test {
 protected:
  Problem problem_ = test::small_problem();
  Registry registry_ = builtin_registry();
  std::unique_ptr<Executor> executor_ = make_executor(2);
  Stream stream_ = Stream::cpu(*executor_);
  Tensor w13_ = test::random_tensor(DType::f32, {8, 48, 40}, 1, 0.2);
  Tensor w2_ = test::random_tensor(DType::f32, {8, 40, 24}, 2, 0.2);
  Tensor x_ = test::random_tensor(DType::f32, {11, 40}, 3);
  Tensor ids_ = test::random_ids(11, 3, 8, 4);
  Tensor weights_ = test::random_weights(DType::f32, 11, 3, 5);

  ExpertWeights experts() const {
    ExpertWeights w;
    w.w13 = w13_;
    w.w2 = w2_;
    return w;
  }
  std::vector<double> run(FusedMoeKernel& kernel, KernelInput input) {
    const auto packed = kernel.experts().pack(experts(), stream_);
    Arena measure = Arena::measuring();
    kernel.plan_scratch(measure, 11);
    Workspace workspace;
    const auto region = workspace.region({}, measure.peak());
    workspace.poison();
    Arena arena(region, {});
    const Tensor out = test::poisoned_tensor(DType::f32, {11, 40});
    input.hidden_states = x_;
    kernel.run(input, *packed, out, arena, stream_);
    return test::values(out);
  }
  FusedMoeKernel kernel() {
    return {problem_, make(registry_.prepare_finalizes, "dispatch/no_ep", problem_),
            make(registry_.experts, "experts/reference_standard", problem_)};
  }
  std::vector<double> expected() const { return test::oracle_moe(problem_.moe, x_, experts(), ids_, weights_); }
};

TEST_F(Run, AsynchronousEndsAreDrivenInOrder) {
  std::vector<std::string> events;
  FusedMoeKernel k(problem_,
                   std::make_unique<AsyncEnds>(make(registry_.prepare_finalizes, "dispatch/no_ep", problem_), events),
                   make(registry_.experts, "experts/reference_standard", problem_));
  const auto beside = [&] { events.push_back("beside"); };
  const FunctionRef<void()> work(beside);
  KernelInput input;
  input.routing = Routing{ids_, weights_};
  input.during_finalize = &work;
  EXPECT_LT(test::rel_error(run(k, input), expected()), 1e-6);
  EXPECT_THAT(events, ::testing::ElementsAre("prepare launched", "prepare arrived", "finalize launched", "beside",
                                             "finalize arrived"));
}

TEST_F(Run, TakesWideIdsAndNarrowWeights) {
  FusedMoeKernel k = kernel();
  const Tensor ids = test::tensor_of(DType::i64, {11, 3}, test::values(ids_));
  const Tensor weights = test::tensor_of(DType::bf16, {11, 3}, test::values(weights_));
  KernelInput input;
  input.routing = Routing{ids, weights};
  EXPECT_LT(test::rel_error(run(k, input), test::oracle_moe(problem_.moe, x_, experts(), ids, weights)), 1e-6);
}

// An id that does not fit in 32 bits is an empty slot, not the expert of its low bits.
TEST_F(Run, HugeIdsAreEmptySlots) {
  FusedMoeKernel k = kernel();
  std::vector<double> list = test::values(ids_);
  list[4] = 4294967297.0;
  const Tensor ids = test::tensor_of(DType::i64, {11, 3}, list);
  KernelInput input;
  input.routing = Routing{ids, weights_};
  EXPECT_LT(test::rel_error(run(k, input), test::oracle_moe(problem_.moe, x_, experts(), ids, weights_)), 1e-6);
}

TEST_F(Run, ExpertMapLengthIsChecked) {
  FusedMoeKernel k = kernel();
  const Tensor map = test::tensor_of(DType::i32, {7}, {0, 1, 2, 3, 4, 5, 6});
  KernelInput input;
  input.routing = Routing{ids_, weights_};
  input.expert_map = map;
  EXPECT_THROW(run(k, input), Error);
}

TEST_F(Run, ModularKernelsNeedRouting) {
  FusedMoeKernel k = kernel();
  EXPECT_THROW(run(k, {}), Error);
}

}  // namespace
}  // namespace conclave
