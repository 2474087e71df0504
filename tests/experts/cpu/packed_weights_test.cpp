// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Packing: update in place, source bytes given up once each, memory at the peak, strided sources, foreign weights.
#include "experts/cpu/packed_weights.hpp"

#include <fstream>
#include <map>

#include "experts/cpu/grouped_case.hpp"

namespace conclave::test {
namespace {

using CpuPacking = CpuPart;
using experts::grouped::GroupedWeights;

TEST_P(CpuPacking, UpdateEqualsPackAndKeepsAddresses) {
  GroupedCase c;
  c.problem = grouped_problem(dtype(), {.experts = 3, .top_k = 2, .hidden = 41, .inner = 27});
  c.moe().has_w13_bias = c.moe().has_w2_bias = true;
  fill_case(c, 9, 41);
  GroupedCase next = c;
  fill_case(next, 9, 42);
  GroupedRunner runner(GetParam(), c, 2);
  GroupedRunner fresh(GetParam(), next, 2);
  const Tensor before = runner.run(next);
  const auto& packed = dynamic_cast<const GroupedWeights&>(runner.packed());
  const void* addresses[] = {packed.w13().panels, packed.w2().panels, packed.w13().bias, packed.w2().bias};
  runner.part().update(runner.packed(), next.expert_weights(), runner.stream());
  const void* after[] = {packed.w13().panels, packed.w2().panels, packed.w13().bias, packed.w2().bias};
  EXPECT_TRUE(std::equal(std::begin(addresses), std::end(addresses), std::begin(after)));
  EXPECT_TRUE(same_bytes(runner.run(next), fresh.run(next)));
  EXPECT_FALSE(same_bytes(runner.run(next), before));
}

TEST_P(CpuPacking, RefusesForeignWeightsAndOtherSizes) {
  const GroupedCase c = grouped_case(dtype(), {.experts = 3, .top_k = 2, .hidden = 16, .inner = 8}, 43);
  GroupedRunner runner(GetParam(), c, 1);
  GroupedCase fewer = c;
  fewer.w13 = random_tensor(dtype(), {2, 16, 16}, 44);
  fewer.w2 = random_tensor(dtype(), {2, 16, 8}, 44);
  EXPECT_THROW(runner.part().update(runner.packed(), fewer.expert_weights(), runner.stream()), Error);
  for (const Entry<Experts>& other : builtin_experts()) {
    if (other.name == GetParam() || other.monolithic || other.format != ActivationFormat::standard) continue;
    if (!other.supports(c.problem)) continue;
    const auto part = other.make({c.problem, nullptr});
    EXPECT_THROW(part->update(runner.packed(), c.expert_weights(), runner.stream()), Error) << other.name;
  }
}

TEST_P(CpuPacking, EverySourceByteIsGivenUpOnce) {
  for (W13Layout layout : {W13Layout::gate_up, W13Layout::up_gate, W13Layout::interleaved})
    for (Activation activation : {Activation::silu, Activation::relu2_no_mul}) {
      GroupedCase c;
      c.problem = grouped_problem(dtype(), {.experts = 3, .top_k = 1, .hidden = 45, .inner = 51});
      c.moe().w13_layout = layout;
      c.moe().activation = activation;
      fill_case(c, 1, 45);
      ExpertWeights weights = c.expert_weights();
      std::map<const std::byte*, int> seen;
      weights.give_up = [&](const void* begin, std::int64_t bytes) {
        for (std::int64_t i = 0; i < bytes; ++i) ++seen[static_cast<const std::byte*>(begin) + i];
      };
      const auto executor = make_executor(2);
      const auto part = part_named(GetParam()).make({c.problem, nullptr});
      const auto packed = part->pack(weights, Stream::cpu(*executor));
      EXPECT_EQ(static_cast<std::int64_t>(seen.size()), weights.w13.bytes() + weights.w2.bytes());
      for (const auto& [byte, times] : seen) ASSERT_EQ(times, 1);
      for (const ConstTensorView& w : {weights.w13, weights.w2}) {
        EXPECT_EQ(seen.count(w.as<std::byte>()), 1u);
        EXPECT_EQ(seen.count(w.as<std::byte>() + w.bytes() - 1), 1u);
      }
    }
}

TEST_P(CpuPacking, StridedSourcesAndTheirBytes) {
  // Experts and rows are windows of wider memory, which is NaN and must be neither read nor given up.
  const GroupedCase c = grouped_case(dtype(), {.tokens = 5, .experts = 2, .top_k = 1, .hidden = 19, .inner = 11}, 46);
  const auto widen = [&](const Tensor& from) {
    const ConstTensorView v = from;
    const Tensor wide = poisoned_tensor(dtype(), {v.size(0), v.size(1) + 3, v.size(2) + 5});
    for (std::int64_t e = 0; e < v.size(0); ++e)
      for (std::int64_t r = 0; r < v.size(1); ++r)
        for (std::int64_t k = 0; k < v.size(2); ++k) set(wide, {e, r + 1, k + 2}, at(v, {e, r, k}));
    return wide;
  };
  const Tensor wide13 = widen(c.w13);
  const Tensor wide2 = widen(c.w2);
  ExpertWeights weights;
  weights.w13 = wide13.view().narrow(1, 1, 22).narrow(2, 2, 19);
  weights.w2 = wide2.view().narrow(1, 1, 19).narrow(2, 2, 11);
  std::int64_t given_up = 0;
  weights.give_up = [&](const void*, std::int64_t bytes) { given_up += bytes; };
  GroupedRunner runner(GetParam(), c, 2);
  const Tensor expected = runner.run(c);
  runner.part().update(runner.packed(), weights, runner.stream());
  EXPECT_TRUE(same_bytes(runner.run(c), expected));
  EXPECT_EQ(given_up, weights.w13.bytes() + weights.w2.bytes());
}

/// Bytes of memory that this process has resident now.
std::int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t size = 0;
  std::int64_t resident = 0;
  statm >> size >> resident;
  return resident * 4096;
}

TEST_P(CpuPacking, PeakMemoryIsTheWeightsAndAFewPages) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "a sanitizer's shadow memory counts as resident";
#endif
  // 150 MB; Mixtral's proportions. Read at every give_up, which is where most is resident.
  GroupedCase c;
  c.problem = grouped_problem(dtype(), {.experts = 4, .top_k = 1, .hidden = 1024, .inner = 3584});
  if (dtype() == DType::f32) c.moe().intermediate_size /= 2;
  c.w13 = Tensor(dtype(), {4, 2 * c.moe().intermediate_size, 1024});
  c.w2 = Tensor(dtype(), {4, 1024, c.moe().intermediate_size});
  for (const Tensor& t : {c.w13, c.w2}) std::memset(t.view().data, 0, static_cast<std::size_t>(t.view().bytes()));
  const std::int64_t weight_bytes = c.w13.view().bytes() + c.w2.view().bytes();
  const std::int64_t before = resident_bytes() - weight_bytes;
  std::int64_t peak = 0;
  ExpertWeights weights = c.expert_weights();
  weights.give_up = [&](const void* begin, std::int64_t bytes) {
    peak = std::max(peak, resident_bytes() - before);
    c.w13.storage()->discard(begin, bytes);
    c.w2.storage()->discard(begin, bytes);
  };
  const auto executor = make_executor(2);
  const auto part = part_named(GetParam()).make({c.problem, nullptr});
  const auto packed = part->pack(weights, Stream::cpu(*executor));
  EXPECT_GT(peak, weight_bytes / 2);  // Else the test measures nothing.
  EXPECT_LT(static_cast<double>(std::max(peak, resident_bytes() - before)), 1.1 * static_cast<double>(weight_bytes));
  EXPECT_GE(packed->bytes(), weight_bytes);
}

CONCLAVE_FOR_EACH_CPU_PART(CpuPacking);

}  // namespace
}  // namespace conclave::test
