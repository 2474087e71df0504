// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// conclave plan: named shapes, formats that nothing computes, ranks, and a checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/parse.hpp"
#include "cli/run_command.hpp"
#include "cli/sample.hpp"
#include "cli/shapes.hpp"
#include "conclave/device.hpp"
#include "conclave/registry.hpp"

namespace conclave {
namespace {

using testing::HasSubstr;

TEST(PlanCommand, EveryNamedShapeFits) {
  for (const std::string& name : cli::split(cli::shape_names(), ',')) {
    const std::string shape = name.substr(name.find_first_not_of(' '));
    const CommandResult r = run_command({"plan", "--shape", shape, "--json"});
    EXPECT_EQ(r.status, 0) << shape << ": " << r.err << r.out;
    EXPECT_EQ(r.json()["fits"], true);
    EXPECT_NE(r.json()["experts"]["chosen"], "") << shape;
  }
}

TEST(PlanCommand, TextNamesWinnersAndRoofline) {
  const CommandResult r = run_command({"plan", "--shape", "8,2,2880,2880", "--tokens", "1,37"});
  EXPECT_EQ(r.status, 0) << r.err;
  for (const char* part : {"router:", "prepare/finalize:", "experts:", "chosen", "workspace:", "roofline:", "37"})
    EXPECT_THAT(r.out, HasSubstr(part));
}

TEST(PlanCommand, WhatNothingComputesIsExplainedCandidateByCandidate) {
  const std::vector<std::string> arguments = {"plan",         "--shape",       "deepseek-v3",  "--weights",
                                              "fp8_block128", "--activations", "int4_group128"};
  const CommandResult text = run_command(arguments);
  EXPECT_EQ(text.status, 1) << text.err;
  const Registry registry = builtin_registry();
  for (const auto& entry : registry.experts.entries()) EXPECT_THAT(text.out, HasSubstr(entry.name));
  auto with_json = arguments;
  with_json.push_back("--json");
  const CommandResult json = run_command(with_json);
  EXPECT_EQ(json.status, 1);
  EXPECT_EQ(json.json()["fits"], false);
  const auto candidates = json.json()["experts"]["candidates"];
  ASSERT_EQ(candidates.size(), registry.experts.entries().size());
  for (const auto& candidate : candidates) {
    EXPECT_NE(candidate["reason"], "") << candidate["name"];
    // The others may lack the CPU's instructions first.
    if (candidate["name"] == "experts/reference_standard") {
      EXPECT_THAT(candidate["reason"], HasSubstr("int4_group128"));
    }
  }
}

TEST(PlanCommand, TheMatrixIsThePageInTheDocuments) {
  const CommandResult r = run_command({"plan", "--matrix"});
  EXPECT_EQ(r.status, 0) << r.err;
  std::ifstream file(CONCLAVE_SOURCE_DIR "/docs/matrix.md");
  std::string page;
  for (std::string line; std::getline(file, line);)
    if (has_cuda_back_end() || line.find("/cuda_") == std::string::npos) page += line + "\n";
  // Not EXPECT_EQ, which would print both.
  EXPECT_TRUE(r.out == page) << "docs/matrix.md is old: conclave plan --matrix > docs/matrix.md";
}

TEST(PlanCommand, RanksFollowTheFlatteningRule) {
  const auto parallel = [](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"plan", "--shape", "16,2,64,96", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const CommandResult r = run_command(arguments);
    EXPECT_NE(r.status, 2) << r.err;
    return r.json();
  };
  EXPECT_EQ(parallel({"--tp", "4"})["moe"]["intermediate_size"], 24);
  EXPECT_EQ(parallel({"--ep", "4"})["moe"]["intermediate_size"], 96);
  expect_bad_input(run_command({"plan", "--shape", "16,2,64,96", "--tp", "5"}), {"96", "5"});
  expect_bad_input(run_command({"plan", "--shape", "16,2,64,96", "--tp", "4", "--ep", "3"}), {"--ep", "3", "4"});
  expect_bad_input(run_command({"plan", "--shape", "16,2,64,96", "--all2all", "pigeon"}), {"pigeon", "low_latency"});
}

TEST(PlanCommand, OptionsChangeTheProblem) {
  const CommandResult r = run_command({"plan", "--shape", "16,2,64,96", "--dtype", "f32", "--activation",
                                       "swiglustep:limit=3", "--routing", "sigmoid", "--json"});
  EXPECT_EQ(r.status, 0) << r.err;
  const auto moe = r.json()["moe"];
  EXPECT_EQ(moe["dtype"], "f32");
  EXPECT_EQ(moe["weight_dtype"], "f32");
  EXPECT_EQ(moe["activation"], "swiglustep");
  EXPECT_EQ(moe["activation_params"]["limit"], 3.0);
  EXPECT_EQ(moe["routing"]["method"], "sigmoid");
}

TEST(PlanCommand, ACheckpoint) {
  const CommandResult r = run_command({"plan", sample_folder(), "--json"});
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(r.json()["moe"]["num_experts"], 16);
  EXPECT_EQ(r.json()["moe"]["dtype"], "bf16");
  expect_bad_input(run_command({"plan", sample_folder(), "--block", "model.layers.9.mlp"}),
                   {"model.layers.9.mlp", "model.layers.3.mlp"});
}

TEST(PlanCommand, BadInput) {
  expect_bad_input(run_command({"plan", "--shape", "gpt-5"}), {"gpt-5", "mixtral"});
  expect_bad_input(run_command({"plan", "--shape", "8,9,64,96"}), {"top_k", "9", "8"});
  expect_bad_input(run_command({"plan"}), {"MODEL", "--shape"});
  expect_bad_input(run_command({"plan", sample_folder(), "--shape", "mixtral"}), {"MODEL", "--shape"});
  expect_bad_input(run_command({"plan", "--shape", "8,2,64,96", "--weights", "fp7"}), {"fp7", "fp8_block128"});
  expect_bad_input(run_command({"plan", "--shape", "8,2,64,96", "--dtype", "f64"}), {"f64", "bf16"});
  expect_bad_input(run_command({"plan", "--shape", "8,2,64,96", "--experts", "best"}), {"best", "experts/"});
  expect_bad_input(run_command({"plan", "/nonexistent/model"}), {"/nonexistent/model"});
}

}  // namespace
}  // namespace conclave
