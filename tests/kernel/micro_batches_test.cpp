// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Fibers in a ring: turns, hooks, exceptions; and a layer that runs in parts has the bits of one that does not.
#include "conclave/micro_batches.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "conclave/registry.hpp"
#include "kernel/layer_fixture.hpp"
#include "support/message_of.hpp"

namespace conclave {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class MicroBatchesTest : public ::testing::Test {
 protected:
  void say(std::string what) { events_.push_back(std::move(what)); }
  std::vector<std::string> events_;
};

TEST_F(MicroBatchesTest, TakeTurnsInARing) {
  for (int count : {2, 3, 5}) {
    std::vector<int> turns;
    run_micro_batches(count, [&](int id) {
      for (int i = 0; i <= id; ++i) {
        EXPECT_EQ(micro_batch::current_id(), id);
        EXPECT_TRUE(micro_batch::enabled());
        turns.push_back(id);
        micro_batch::yield();
      }
    });
    std::vector<int> expected;
    for (int i = 0; i < count; ++i)
      for (int id = i; id < count; ++id) expected.push_back(id);
    EXPECT_EQ(turns, expected);
    EXPECT_FALSE(micro_batch::enabled());
    EXPECT_EQ(micro_batch::current_id(), 0);
  }
}

TEST_F(MicroBatchesTest, OutsideEverythingHappensAtOnce) {
  micro_batch::yield();
  micro_batch::run_pending_recv_hook();
  micro_batch::register_recv_hook([&] { say("registered"); });
  micro_batch::wait_for_recv([&] { say("waited"); });
  EXPECT_THAT(events_, ElementsAre("registered", "waited"));
}

/// The reference's flow: launch, leave the wait to the sibling, compute when it is done.
TEST_F(MicroBatchesTest, SiblingsWaitForEachOthersData) {
  run_micro_batches(2, [&](int id) {
    const std::string me = std::to_string(id);
    micro_batch::run_pending_recv_hook();
    say("launch " + me);
    micro_batch::wait_for_recv(
        [this, id] { say("arrived " + std::to_string(id) + " seen by " + std::to_string(micro_batch::current_id())); });
    say("compute " + me);
  });
  EXPECT_THAT(events_, ElementsAre("launch 0", "arrived 0 seen by 1", "launch 1", "compute 0", "arrived 1 seen by 0",
                                   "compute 1"));
}

TEST_F(MicroBatchesTest, AHookThatNobodyAsksForRunsInItsOwner) {
  run_micro_batches(2, [&](int id) {
    if (id == 0) {
      micro_batch::wait_for_recv([&] { say("hook in " + std::to_string(micro_batch::current_id())); });
      say("0 goes on");
    } else {
      micro_batch::yield();  // Without asking for pending hooks.
      say("1 ends");
    }
  });
  EXPECT_THAT(events_, ElementsAre("hook in 0", "0 goes on", "1 ends"));
}

TEST_F(MicroBatchesTest, AHookRunsAtTheEndOfTheSiblingAtTheLatest) {
  run_micro_batches(3, [&](int id) {
    if (id == 1) micro_batch::register_recv_hook([&] { say("hook in " + std::to_string(micro_batch::current_id())); });
    if (id == 2) say("2 ends");
  });
  EXPECT_THAT(events_, ElementsAre("2 ends", "hook in 2"));
}

TEST_F(MicroBatchesTest, AHookForAnEndedSiblingRunsAtOnce) {
  run_micro_batches(2, [&](int id) {
    if (id == 0) return;
    micro_batch::register_recv_hook([&] { say("hook in 1"); });
    say("after");
  });
  EXPECT_THAT(events_, ElementsAre("hook in 1", "after"));
}

struct Unwound {
  std::vector<std::string>& events;
  std::string name;
  ~Unwound() { events.push_back("unwound " + name); }
};

TEST_F(MicroBatchesTest, AnExceptionUnwindsTheOthersAndIsRethrown) {
  const auto body = [&](int id) {
    const Unwound guard{events_, std::to_string(id)};
    if (id == 3) say("3 begins");
    if (id == 2) throw std::runtime_error("two");
    for (;;) {
      try {
        micro_batch::yield();
      } catch (const MicroBatchAborted& e) {
        say(e.what());
        throw;
      }
    }
  };
  EXPECT_THROW(
      {
        try {
          run_micro_batches(4, body);
        } catch (const std::runtime_error& e) {
          EXPECT_STREQ(e.what(), "two");
          throw;
        }
      },
      std::runtime_error);
  EXPECT_THAT(events_,
              ElementsAre("unwound 2", "micro-batch 0: stopped because another micro-batch failed", "unwound 0",
                          "micro-batch 1: stopped because another micro-batch failed", "unwound 1"));
  EXPECT_FALSE(micro_batch::enabled());
}

/// Hooks of a failed run refer to frames that are gone: they are dropped, and the next run starts clean.
TEST_F(MicroBatchesTest, CanRunAgainAfterAFailure) {
  MicroBatches batches(2);
  for (int round = 0; round < 3; ++round) {
    EXPECT_THROW(batches.run([&](int id) {
      if (id == 0) micro_batch::wait_for_recv([&] { say("dropped"); });
      throw Error(ErrorKind::io, "lost");
    }),
                 Error);
    batches.run([&](int id) {
      micro_batch::run_pending_recv_hook();
      say("run " + std::to_string(id));
    });
  }
  EXPECT_THAT(events_, ElementsAre("run 0", "run 1", "run 0", "run 1", "run 0", "run 1"));
}

TEST_F(MicroBatchesTest, AHookOfAFailedSiblingNeverRuns) {
  EXPECT_THROW(run_micro_batches(2,
                                 [&](int id) {
                                   if (id == 0) {
                                     micro_batch::yield();
                                     micro_batch::register_recv_hook([&] { say("hook of a frame that is gone"); });
                                     throw Error(ErrorKind::io, "lost");
                                   }
                                   try {
                                     micro_batch::yield();
                                   } catch (const MicroBatchAborted&) {
                                     say("stopped");
                                     micro_batch::run_pending_recv_hook();
                                     throw;
                                   }
                                 }),
               Error);
  EXPECT_THAT(events_, ElementsAre("stopped"));
}

/// Exceptions in flight belong to the thread in the C++ run-time; a fiber that yields while it handles one must find it
/// again, whatever its siblings threw and caught meanwhile.
TEST_F(MicroBatchesTest, YieldInsideACatchBlockKeepsTheException) {
  run_micro_batches(3, [&](int id) {
    for (int round = 0; round < 4; ++round) {
      try {
        throw std::runtime_error(std::to_string(10 * id + round));
      } catch (const std::exception&) {
        micro_batch::yield();
        try {
          throw;
        } catch (const std::exception& e) {
          micro_batch::yield();
          EXPECT_EQ(e.what(), std::to_string(10 * id + round));
        }
      }
      EXPECT_EQ(std::uncaught_exceptions(), 0);
    }
  });
}

TEST_F(MicroBatchesTest, ThreadsHaveRingsOfTheirOwn) {
  const auto executor = make_executor(2);
  const auto work = [&](int count, int rounds) {
    for (int round = 0; round < rounds; ++round) {
      int turns = 0;
      run_micro_batches(count, [&](int id) {
        for (int i = 0; i < 50; ++i) {
          ASSERT_EQ(micro_batch::current_id(), id);
          ++turns;
          micro_batch::yield();
        }
      });
      ASSERT_EQ(turns, 50 * count);
    }
  };
  std::thread other([&] { work(3, 40); });
  work(2, 40);
  other.join();
  // A thread that an executor lends is in no micro-batch.
  run_micro_batches(
      2, [&](int) { executor->parallel([&](int thread) { EXPECT_EQ(micro_batch::enabled(), thread == 0); }); });
}

TEST_F(MicroBatchesTest, RefusesWhatIsNoRing) {
  EXPECT_THAT(test::message_of([] { MicroBatches(1); }), HasSubstr("micro-batches: given 1, expected 2 to 64"));
  EXPECT_THAT(test::message_of([] { MicroBatches(65); }), HasSubstr("given 65"));
  EXPECT_THAT(test::message_of([] { run_micro_batches(2, [](int) { run_micro_batches(2, [](int) {}); }); }),
              HasSubstr("run() inside of micro-batch 0"));
}

/// An asynchronous part over a synchronous one, which records who runs its hooks.
class LateEnds : public ModularPrepareFinalize {
 public:
  LateEnds(std::unique_ptr<PrepareFinalize> inner, std::vector<std::string>* events)
      : inner_(static_cast<ModularPrepareFinalize*>(inner.release())), events_(events) {}
  const std::string& name() const noexcept override { return inner_->name(); }
  bool supports_async() const noexcept override { return true; }
  void plan_scratch(Arena& arena, std::int64_t n) const override { inner_->plan_scratch(arena, n); }
  Prepared prepare(const PrepareInput&, Arena&, Stream) override { throw std::logic_error("synchronous prepare"); }
  void finalize(const FinalizeInput&, const TensorView&, Stream) override { throw std::logic_error("synchronous"); }
  Pending<Prepared> prepare_async(const PrepareInput& input, Arena& arena, Stream stream) override {
    launched("prepare");
    return Pending<Prepared>(arrived("prepare"),
                             [this, &input, &arena, stream] { return inner_->prepare(input, arena, stream); });
  }
  Pending<Done> finalize_async(const FinalizeInput& input, const TensorView& output, Stream stream) override {
    launched("finalize");
    return Pending<Done>(arrived("finalize"), [this, &input, &output, stream] {
      inner_->finalize(input, output, stream);
      return Done{};
    });
  }

 private:
  void launched(const char* what) {
    events_->push_back(std::string(what) + " of " + std::to_string(micro_batch::current_id()));
  }
  InplaceFunction<void> arrived(const char* what) {
    return [events = events_, what, id = micro_batch::current_id()] {
      events->push_back(std::string(what) + " of " + std::to_string(id) + " arrived in " +
                        std::to_string(micro_batch::current_id()));
    };
  }
  std::unique_ptr<ModularPrepareFinalize> inner_;
  std::vector<std::string>* events_;
};

class MicroBatchedLayer : public ::testing::Test {
 protected:
  Registry late_registry() {
    Registry r = builtin_registry();
    Entry<PrepareFinalize> late = *r.prepare_finalizes.find("dispatch/no_ep");
    const auto make = late.make;
    late.name = "dispatch/late";
    late.make = [this, make](const PartContext& c) { return std::make_unique<LateEnds>(make(c), &events_); };
    r.prepare_finalizes.add_first(late);
    return r;
  }
  Tensor run_split(MoeLayer& layer, const Tensor& x, int count) {
    const MoeConfig& c = layer.plan().problem.moe;
    Tensor out = test::poisoned_tensor(c.dtype, {x.view().size(0), c.hidden_size});
    MicroBatches batches(count);
    Workspace workspace;
    for (int i = 0; i < count; ++i) workspace.region({i, 1}, layer.plan().workspace_bytes);
    workspace.poison();
    workspace.lock();
    LayerInput input;
    input.hidden_states = x;
    run_micro_batched(layer, input, out, workspace, Stream::cpu(*executor_), batches, 1);
    return out;
  }
  std::vector<std::string> events_;
  std::unique_ptr<Executor> executor_ = make_executor(2);
};

TEST_F(MicroBatchedLayer, HasTheBitsOfTheWholeBatch) {
  Problem p = test::small_problem();
  p.moe.shared.intermediate_size = 12;
  const Registry registry = late_registry();
  const test::LayerTensors t = test::random_layer(p, 3);
  for (const char* ends : {"dispatch/no_ep", "dispatch/late"})
    for (std::int64_t m : {1, 2, 7, 37}) {
      PlanOptions options;
      options.prepare_finalize = ends;
      MoeLayer layer(plan(p, registry, options), registry, t.weights, Stream::cpu(*executor_));
      const Tensor x = test::random_tensor(DType::f32, {m, p.moe.hidden_size}, 5);
      const test::LayerRun whole = test::run_layer(layer, x);
      for (int count : {2, 3, 4})
        EXPECT_TRUE(test::same_bytes(run_split(layer, x, count), whole.output)) << ends << " " << m << " / " << count;
    }
}

TEST_F(MicroBatchedLayer, OverlapsOnePartsDataWithTheOthersExperts) {
  const Problem p = test::small_problem();
  const Registry registry = late_registry();
  const test::LayerTensors t = test::random_layer(p, 3);
  PlanOptions options;
  options.prepare_finalize = "dispatch/late";
  MoeLayer layer(plan(p, registry, options), registry, t.weights, Stream::cpu(*executor_));
  run_split(layer, test::random_tensor(DType::f32, {6, p.moe.hidden_size}, 5), 2);
  EXPECT_THAT(events_, ElementsAre("prepare of 0", "prepare of 0 arrived in 1", "prepare of 1",
                                   // 0 has computed its experts here, while the data of 1 was on its way.
                                   "prepare of 1 arrived in 0", "finalize of 0", "finalize of 0 arrived in 1",
                                   "finalize of 1", "finalize of 1 arrived in 0"));
}

TEST_F(MicroBatchedLayer, RefusesInputsOfOtherLengths) {
  const Problem p = test::small_problem();
  const Registry registry = builtin_registry();
  const test::LayerTensors t = test::random_layer(p, 3);
  MoeLayer layer(plan(p, registry), registry, t.weights, Stream::cpu(*executor_));
  const Tensor x = test::random_tensor(DType::f32, {6, p.moe.hidden_size}, 5);
  const Tensor out(DType::f32, {5, p.moe.hidden_size});
  Workspace workspace;
  MicroBatches batches(2);
  LayerInput input;
  input.hidden_states = x;
  EXPECT_THAT(
      test::message_of([&] { run_micro_batched(layer, input, out, workspace, Stream::cpu(*executor_), batches); }),
      HasSubstr("output: given f32[5, 40], expected 6 rows as hidden_states"));
}

}  // namespace
}  // namespace conclave
