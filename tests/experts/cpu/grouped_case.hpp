// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// One problem for the CPU's grouped experts: made from sizes and a seed, run by any part on any number of threads in
// memory full of NaN, compared with the oracle in double.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "conclave/quantise.hpp"
#include "conclave/registry.hpp"
#include "support/oracle.hpp"
#include "support/tensors.hpp"

namespace conclave {

std::vector<Entry<Experts>> builtin_experts();

namespace test {

/// The word behind "experts/cpu_": bf16, int8, mxfp4.
inline std::string format_of_part(const std::string& part) {
  return part.substr(12, part.find('_', 12) - 12);
}
inline bool is_unquantised(const std::string& part) {
  const std::string word = format_of_part(part);
  return word == "f32" || word == "bf16" || word == "f16";
}

/// Of unquantised weights, or those that decode codes.
inline std::vector<Entry<Experts>> grouped_parts(bool unquantised = true) {
  std::vector<Entry<Experts>> parts = builtin_experts();
  std::erase_if(parts, [&](const Entry<Experts>& e) {
    return e.name.rfind("experts/cpu_", 0) != 0 || is_unquantised(e.name) != unquantised;
  });
  return parts;
}

inline Entry<Experts> part_named(const std::string& name) {
  for (const Entry<Experts>& part : builtin_experts())
    if (part.name == name) return part;
  throw std::logic_error("no part " + name);
}

inline DType dtype_of(const std::string& part) {
  return *dtype_from_name(format_of_part(part));
}

/// Relative error of a whole output. f32: rounding of sums; 16 bits: of the output and, where the unit wants it, of the
/// activation.
inline double tolerance_of(DType dtype) {
  return dtype == DType::f32 ? 1e-6 : dtype == DType::bf16 ? 4e-3 : 4e-4;
}

struct Sizes {
  std::int64_t tokens = 13, experts = 5, top_k = 2, hidden = 40, inner = 24;
};

struct GroupedCase {
  Problem problem;
  Tensor x, w13, w2, w13_bias, w2_bias, ids, weights, map;
  std::optional<QuantisedExperts> quantised;  ///< Of w13 and w2, which stay beside it.

  MoeConfig& moe() { return problem.moe; }

  ExpertWeights expert_weights() const {
    ExpertWeights w;
    w.w13 = w13;
    w.w2 = w2;
    if (w13_bias) w.w13_bias = w13_bias;
    if (w2_bias) w.w2_bias = w2_bias;
    return quantised ? quantised->weights(w) : w;
  }
  std::optional<ConstTensorView> expert_map() const { return map ? std::optional<ConstTensorView>(map) : std::nullopt; }
  std::vector<double> expected() const {
    return oracle_moe(problem.moe, x, expert_weights(), ids, weights, expert_map());
  }
};

inline Problem grouped_problem(DType dtype, const Sizes& s) {
  Problem p;
  p.moe.num_experts = s.experts;
  p.moe.top_k = s.top_k;
  p.moe.hidden_size = s.hidden;
  p.moe.intermediate_size = s.inner;
  p.moe.dtype = dtype;
  p.moe.weight_dtype = dtype;
  p.device = cpu_facts(2);
  return p;
}

/// Weights and biases of order 1 / sqrt(columns), so that every stage's values are of order 1. Call after the fields of
/// `problem.moe` are set.
inline void fill_case(GroupedCase& c, std::int64_t tokens, std::uint64_t seed, double gate_scale = 1.0) {
  const MoeConfig& moe = c.problem.moe;
  const std::int64_t experts = moe.num_weight_experts();
  const std::int64_t rows = w13_rows(is_gated(moe.activation), moe.intermediate_size);
  const double scale13 = gate_scale / std::sqrt(static_cast<double>(moe.hidden_size));
  const double scale2 = 1.0 / std::sqrt(static_cast<double>(moe.intermediate_size));
  c.x = random_tensor(moe.dtype, {tokens, moe.hidden_size}, seed);
  c.w13 = random_tensor(moe.weight_dtype, {experts, rows, moe.hidden_size}, seed + 1, scale13);
  c.w2 = random_tensor(moe.weight_dtype, {experts, moe.hidden_size, moe.intermediate_size}, seed + 2, scale2);
  if (moe.has_w13_bias) c.w13_bias = random_tensor(DType::f32, {experts, rows}, seed + 3);
  if (moe.has_w2_bias) c.w2_bias = random_tensor(moe.weight_dtype, {experts, moe.hidden_size}, seed + 4);
  c.ids = random_ids(tokens, moe.num_slots(), experts, seed + 5);
  c.weights = random_weights(DType::f32, tokens, moe.num_slots(), seed + 6);
}

inline GroupedCase grouped_case(DType dtype, const Sizes& s, std::uint64_t seed = 1) {
  GroupedCase c;
  c.problem = grouped_problem(dtype, s);
  fill_case(c, s.tokens, seed);
  return c;
}

/// A part made for a problem, with its packed weights.
class GroupedRunner {
 public:
  GroupedRunner(const std::string& part, const GroupedCase& c, int num_threads)
      : GroupedRunner(part_named(part), c, num_threads) {}
  GroupedRunner(const Entry<Experts>& entry, const GroupedCase& c, int num_threads)
      : executor_(make_executor(num_threads)) {
    const PartContext context{c.problem, nullptr};
    part_ = entry.make(context);
    packed_ = part_->pack(c.expert_weights(), stream());
  }

  /// The output of one call. Fails the test on a write behind the buffers; NaN shows what was not written.
  Tensor run(const GroupedCase& c, const ConstTensorView& x, const ConstTensorView& ids, const ConstTensorView& weights,
             bool weight_applied = false) {
    const std::int64_t tokens = x.size(0);
    PoisonedArena memory([&](Arena& arena) { part_->take_buffers(arena, tokens); });
    Arena arena = memory.arena();
    const ExpertsBuffers buffers = part_->take_buffers(arena, tokens);
    ExpertsInput input;
    input.hidden_states = x;
    input.topk_ids = ids;
    input.topk_weights = weights;
    input.expert_map = c.expert_map();
    input.router_weight_applied = weight_applied;
    dynamic_cast<const ModularExperts&>(*part_).apply(input, *packed_, buffers, stream());
    EXPECT_TRUE(memory.guard_intact());
    Tensor out(buffers.output.dtype, {tokens, x.size(1)});
    if (tokens > 0) std::memcpy(out.view().data, buffers.output.data, static_cast<std::size_t>(buffers.output.bytes()));
    return out;
  }
  Tensor run(const GroupedCase& c) { return run(c, c.x, c.ids, c.weights); }

  const Experts& part() const { return *part_; }
  PackedWeights& packed() { return *packed_; }
  Stream stream() { return Stream::cpu(*executor_); }

 private:
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Experts> part_;
  std::unique_ptr<PackedWeights> packed_;
};

inline double error_of(const std::string& part, const GroupedCase& c, int num_threads = 2) {
  GroupedRunner runner(part, c, num_threads);
  return rel_error(runner.run(c), c.expected());
}

/// Skips, with the part's own reason, where the machine lacks the instruction set.
class CpuPart : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const Support support = part_named(GetParam()).supports(grouped_problem(dtype(), {}));
    if (!support) GTEST_SKIP() << GetParam() << ": " << support.reason();
  }
  DType dtype() const { return dtype_of(GetParam()); }
  double tolerance() const { return tolerance_of(dtype()); }
};

inline std::vector<std::string> grouped_part_names() {
  std::vector<std::string> names;
  for (const Entry<Experts>& part : grouped_parts()) names.push_back(part.name);
  return names;
}

inline std::string test_name(const testing::TestParamInfo<std::string>& info) {
  return info.param.substr(info.param.find('/') + 1);
}

}  // namespace test
}  // namespace conclave

/// In each file: the tests of CpuPart's subclass `fixture` for every part of the build.
#define CONCLAVE_FOR_EACH_CPU_PART(fixture)                                                         \
  INSTANTIATE_TEST_SUITE_P(Parts, fixture, testing::ValuesIn(conclave::test::grouped_part_names()), \
                           conclave::test::test_name)
