// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Every file of tests/cases through every experts part that supports it. Files whose names end in _checked are run in
// checked mode.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "conclave/case_file.hpp"
#include "conclave/error.hpp"
#include "conclave/plan.hpp"
#include "conclave/prepare_finalize.hpp"
#include "conclave/safetensors.hpp"
#include "conclave/verify.hpp"
#include "verify/element.hpp"

namespace conclave {
namespace {

using verify_detail::to_doubles;

std::vector<std::string> case_paths() {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(CONCLAVE_SOURCE_DIR "/tests/cases"))
    if (entry.path().extension() == ".safetensors") paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

/// What the file itself expects, whether or not read_case() accepts it.
std::string expected_error(const std::string& path) {
  const SafetensorsFile file(path);
  return nlohmann::json::parse(file.metadata().at("problem")).value("expect_error", "");
}

/// Ranks whose linear placement holds as many experts as the file has weights for: how large batched buffers are.
ParallelConfig ranks_of(const Case& c) {
  const std::int64_t experts = c.moe.num_weight_experts(), local = c.weights.experts.num_local_experts();
  if (!c.weights.expert_map) return {};
  for (std::int64_t ranks = 1; ranks <= experts; ++ranks)
    for (std::int64_t rank = 0; rank < ranks; ++rank)
      if (experts / ranks + (rank < experts % ranks ? 1 : 0) == local)
        return make_parallel(ranks, rank, 1, 0, 1, 0, 1, true, All2All::none);
  return {};
}

Problem problem_of(const Case& c) {
  Problem problem;
  problem.moe = c.moe;
  problem.moe.max_num_tokens = std::max<std::int64_t>(1, c.hidden_states.size(0));
  problem.moe.checked |= c.name.ends_with("_checked");
  problem.quant = c.quant;
  problem.parallel = ranks_of(c);
  problem.device = cpu_facts(2);
  return problem;
}

TensorView writable(const ConstTensorView& view) {
  TensorView v(const_cast<void*>(view.data), view.dtype,
               std::span(view.shape.data(), static_cast<std::size_t>(view.rank)));
  v.strides = view.strides;
  return v;
}

struct CaseResult {
  Tensor output, ids, weights;
};

CaseResult run_case(const Case& c, const Registry& registry, const std::string& experts, Stream stream) {
  PlanOptions options;
  options.experts = experts;
  const Problem problem = problem_of(c);
  const Plan planned = plan(problem, registry, options);
  MoeLayer layer(planned, registry, c.weights, stream);
  Workspace workspace;
  workspace.region({}, planned.workspace_bytes);
  workspace.poison();
  const std::int64_t num_tokens = c.hidden_states.size(0), slots = c.moe.num_slots();
  CaseResult result{Tensor(c.moe.dtype, {num_tokens, c.moe.hidden_size}), Tensor(DType::i32, {num_tokens, slots}),
                    Tensor(DType::f32, {num_tokens, slots})};
  verify_detail::poison(result.output);
  LayerInput input;
  input.hidden_states = c.hidden_states;
  input.router_logits = c.router_logits;
  if (c.moe.in_place) {
    result.output = verify_detail::clone(c.hidden_states);
    input.hidden_states = result.output;
  }
  if (c.topk_ids) input.routing = Routing{writable(*c.topk_ids), writable(c.topk_weights.value())};
  if (c.expected_topk_ids) input.captured = Routing{result.ids, result.weights};
  layer.run(input, result.output.view(), workspace, stream);
  return result;
}

void expect_elements(const ConstTensorView& got, const ConstTensorView& expected, double atol, double rtol,
                     const char* what) {
  const std::vector<double> a = to_doubles(got), b = to_doubles(expected);
  ASSERT_EQ(a.size(), b.size()) << what;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    ASSERT_LE(std::fabs(a[i] - b[i]), atol + rtol * std::fabs(b[i])) << what << "[" << i << "] is " << a[i];
  }
}

void expect_case(const Case& c, const CaseResult& result) {
  if (c.expected_topk_ids) {
    EXPECT_EQ(to_doubles(result.ids), to_doubles(*c.expected_topk_ids));
  }
  if (c.expected_topk_weights) expect_elements(result.weights, *c.expected_topk_weights, 1e-6, 1e-5, "topk_weights");
  if (!c.expected) return;
  if (c.tolerance) return expect_elements(result.output, *c.expected, c.tolerance->atol, c.tolerance->rtol, "output");
  EXPECT_LE(relative_error(result.output, *c.expected), c.moe.dtype == DType::f32 ? 1e-5 : 6e-3);
}

TEST(Cases, GiveTheExpectedTensorsWithEveryExpertsPart) {
  const std::unique_ptr<Executor> executor = make_executor(2);
  const Registry registry = builtin_registry();
  int cases = 0;
  for (const std::string& path : case_paths()) {
    SCOPED_TRACE(path);
    if (!expected_error(path).empty()) continue;
    const Case c = read_case(path);
    ++cases;
    int ran = 0;
    for (const auto& experts : registry.experts.entries()) {
      SCOPED_TRACE(experts.name);
      // Ids that come with the file cannot reach a part that routes for itself.
      if (experts.monolithic && !c.router_logits) continue;
      try {
        expect_case(c, run_case(c, registry, experts.name, Stream::cpu(*executor)));
        ++ran;
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::unsupported) ADD_FAILURE() << error.what();
      }
    }
    EXPECT_GE(ran, 2) << "hardly any part runs this case";
  }
  EXPECT_GE(cases, 150);
}

/// The counts of a file are of picks; the batched format holds a token once for each expert, however often it picks it.
bool names_an_expert_twice(const ConstTensorView& ids) {
  for (std::int64_t m = 0; m < ids.size(0); ++m) {
    std::vector<double> row = to_doubles(ids.at(m));
    std::sort(row.begin(), row.end());
    for (std::size_t k = 1; k < row.size(); ++k)
      if (row[k] >= 0 && row[k] == row[k - 1]) return true;
  }
  return false;
}

TEST(Cases, GiveTheExpectedCountsInTheBatchedFormat) {
  const std::unique_ptr<Executor> executor = make_executor(2);
  const Stream stream = Stream::cpu(*executor);
  const Registry registry = builtin_registry();
  int compared = 0;
  for (const std::string& path : case_paths()) {
    SCOPED_TRACE(path);
    if (!expected_error(path).empty()) continue;
    const Case c = read_case(path);
    if (!c.topk_ids || !c.expected_counts || c.topk_weights->dtype != DType::f32) continue;
    if (c.hidden_states.size(0) == 0 || c.moe.latent_size > 0 || names_an_expert_twice(*c.topk_ids)) continue;
    const Problem problem = problem_of(c);
    for (const auto& entry : registry.prepare_finalizes.entries()) {
      if (entry.format != ActivationFormat::batched_experts || !entry.supports(problem)) continue;
      const std::unique_ptr<PrepareFinalize> made = entry.make({problem, nullptr});
      auto& ends = static_cast<ModularPrepareFinalize&>(*made);
      Arena measure = Arena::measuring();
      ends.plan_scratch(measure, c.hidden_states.size(0));
      const Tensor memory(DType::u8, {measure.peak()});
      verify_detail::poison(memory);
      Arena arena({memory.as<std::byte>(), static_cast<std::size_t>(measure.peak())}, {});
      PrepareInput input;
      input.hidden_states = c.hidden_states;
      input.routing = {writable(*c.topk_ids), writable(*c.topk_weights)};
      input.expert_map = c.weights.expert_map;
      input.apply_router_weight_on_input = c.moe.apply_router_weight_on_input;
      const Prepared prepared = ends.prepare(input, arena, stream);
      ASSERT_TRUE(prepared.expert_tokens.has_value());
      EXPECT_EQ(to_doubles(prepared.expert_tokens->counts), to_doubles(*c.expected_counts));
      ++compared;
    }
  }
  EXPECT_GE(compared, 50);
}

TEST(Cases, AreRefusedWithTheMessageThatTheyExpect) {
  const std::unique_ptr<Executor> executor = make_executor(2);
  const Registry registry = builtin_registry();
  int cases = 0;
  for (const std::string& path : case_paths()) {
    SCOPED_TRACE(path);
    const std::string expected = expected_error(path);
    if (expected.empty()) continue;
    ++cases;
    try {
      run_case(read_case(path), registry, "", Stream::cpu(*executor));
      ADD_FAILURE() << "ran, expected an error with \"" << expected << "\"";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
    }
  }
  EXPECT_GE(cases, 15);
}

}  // namespace
}  // namespace conclave
