// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// run() does not allocate: every operator new of this program is counted while it runs.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "conclave/comm.hpp"
#include "conclave/micro_batches.hpp"
#include "conclave/shard.hpp"
#include "kernel/layer_fixture.hpp"

namespace {

std::atomic<std::int64_t> allocations{0};

void* counted(std::size_t size, std::size_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  const std::size_t rounded = (size + alignment - 1) / alignment * alignment;
  void* p = std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

}  // namespace

// Never inlined: GCC takes the one that it inlined, seen beside a call of the other, for a mismatched pair.
[[gnu::noinline]] void* operator new(std::size_t size) {
  return counted(size, alignof(std::max_align_t));
}
[[gnu::noinline]] void* operator new[](std::size_t size) {
  return counted(size, alignof(std::max_align_t));
}
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t a) {
  return counted(size, static_cast<std::size_t>(a));
}
[[gnu::noinline]] void* operator new[](std::size_t size, std::align_val_t a) {
  return counted(size, static_cast<std::size_t>(a));
}
// std::stable_sort asks for its buffer so: what is left out here would be the library's own, and freed by ours.
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return ::operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
[[gnu::noinline]] void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return ::operator new[](size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
[[gnu::noinline]] void operator delete(void* p) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete[](void* p) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete[](void* p, std::size_t) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete[](void* p, std::align_val_t) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete[](void* p, std::size_t, std::align_val_t) noexcept {
  std::free(p);
}

namespace conclave {
namespace {

TEST(NoAllocation, TheCounterCounts) {
  const std::int64_t before = allocations.load();
  std::vector<int> v(10);
  EXPECT_GT(allocations.load(), before) << v.size();
}

TEST(NoAllocation, RunOfEveryPart) {
  const Registry registry = builtin_registry();
  auto executor = make_executor(2);
  const Stream stream = Stream::cpu(*executor);
  for (DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const auto& entry : registry.experts.entries()) {
      Problem p = test::small_problem(dtype);
      if (!entry.monolithic) p.moe.shared = {9, true};
      PlanOptions options;
      options.experts = entry.name;
      std::optional<Plan> planned;
      try {
        planned = plan(p, registry, options);
      } catch (const Error&) {
        continue;
      }
      const test::LayerTensors t = test::random_layer(p, 1);
      MoeLayer layer(*planned, registry, t.weights, stream);
      // Rows of a wider tensor: the text of such a view is longer than a string holds without allocating, so that a
      // check which formats its message before it fails is caught.
      const Tensor wide = test::random_tensor(dtype, {37, 113}, 2);
      const Tensor wide_out(dtype, {37, 113});
      const ConstTensorView x = ConstTensorView(wide).narrow(1, 9, 40);
      const TensorView y = wide_out.view().narrow(1, 9, 40);
      Workspace workspace;
      workspace.region({}, layer.plan().workspace_bytes);
      workspace.lock();
      LayerInput input;
      input.hidden_states = x;
      layer.run(input, y, workspace, stream);
      for (std::int64_t tokens : {37, 1, 8, 0}) {
        input.hidden_states = x.narrow(0, 0, tokens);
        const std::int64_t before = allocations.load();
        layer.run(input, y.narrow(0, 0, tokens), workspace, stream);
        EXPECT_EQ(allocations.load() - before, 0) << entry.name << " " << name_of(dtype) << " " << tokens;
      }
    }
}

/// Allocations of all ranks while each runs its layer again: whole, and in micro-batches.
std::int64_t allocations_over_ranks(const Problem& whole, const std::string& prepare, All2All all2all) {
  constexpr int kRanks = 3;
  constexpr std::int64_t kTokens = 8;
  const Registry registry = builtin_registry();
  const test::LayerTensors t = test::random_layer(whole, 1);
  const Tensor x = test::random_tensor(whole.moe.dtype, {kTokens, whole.moe.hidden_size}, 2);
  std::int64_t counted = 0;
  run_ranks(kRanks, [&](Communicator& c) {
    auto executor = make_inline_executor();
    const Stream stream = Stream::cpu(*executor);
    Problem p = whole;
    p.moe.max_num_tokens = kTokens;
    const ParallelConfig replicas = p.parallel;
    p.parallel = all2all == All2All::none ? make_parallel(kRanks, c.rank(), 1, 0, 1, 0, 1, true, all2all)
                                          : make_parallel(1, 0, 1, 0, kRanks, c.rank(), 1, true, all2all);
    p.parallel.enable_eplb = replicas.enable_eplb;
    p.parallel.num_redundant_experts = replicas.num_redundant_experts;
    PlanOptions options;
    options.prepare_finalize = prepare;
    const ShardedWeights shard = shard_weights(p.moe, t.weights.experts, p.parallel);
    LayerWeights weights = t.weights;
    weights.experts = shard.experts;
    MoeLayer layer(plan(p, registry, options), registry, weights, stream, &c);
    const Tensor y(p.moe.dtype, {kTokens, p.moe.hidden_size});
    LayerInput input;
    // One rank without tokens, where each brings its own.
    const std::int64_t count = all2all == All2All::none || c.rank() != 1 ? kTokens : 0;
    input.hidden_states = x.view().narrow(0, 0, count);
    Workspace workspace;
    MicroBatches batches(2);
    const auto run = [&] {
      layer.run(input, y.view().narrow(0, 0, count), workspace, stream);
      run_micro_batched(layer, input, y.view().narrow(0, 0, count), workspace, stream, batches);
    };
    run();
    workspace.lock();
    c.barrier();
    const std::int64_t before = allocations.load();
    c.barrier();
    for (int i = 0; i < 3; ++i) run();
    c.barrier();
    if (c.rank() == 0) counted = allocations.load() - before;
    c.barrier();
  });
  return counted;
}

TEST(NoAllocation, RunOverRanks) {
  for (const QuantKey activations : {QuantKey::none, QuantKey::fp8_block128})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Problem p = test::small_problem(dtype);
      p.moe.shared = {9, true};
      p.quant.activations = activations;
      const std::string label = std::string(name_of(dtype)) + " " + std::string(name_of(activations));
      EXPECT_EQ(allocations_over_ranks(p, "dispatch/no_ep", All2All::none), 0) << label;
      p.parallel.enable_eplb = true;
      p.parallel.num_redundant_experts = 1;
      for (const All2All all2all : {All2All::all_to_all, All2All::allgather_reducescatter, All2All::low_latency}) {
        const std::string prepare = "dispatch/" + std::string(name_of(all2all));
        EXPECT_EQ(allocations_over_ranks(p, prepare, all2all), 0) << prepare << " " << label;
      }
    }
}

}  // namespace
}  // namespace conclave
