// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Every architecture of tests/data/families, and the sample model, computed from what Checkpoint says about it and
// compared with what the architecture's own public implementation returned.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "conclave/checkpoint.hpp"
#include "conclave/safetensors.hpp"
#include "io/plain_layer.hpp"

namespace conclave::test {
namespace {

namespace fs = std::filesystem;
const fs::path kRoot = CONCLAVE_SOURCE_DIR;

std::vector<std::string> folders() {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(kRoot / "tests/data/families")) out.push_back(entry.path().string());
  out.push_back((kRoot / "data/tiny-moe").string());
  std::sort(out.begin(), out.end());
  return out;
}

double relative_error(const std::vector<double>& found, const float* expected) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    difference += (found[i] - expected[i]) * (found[i] - expected[i]);
    norm += static_cast<double>(expected[i]) * expected[i];
  }
  return std::sqrt(difference / norm);
}

/// Chosen ids, and their weights where the router returned them in the same shape. False: it returned no ids.
bool compare_routing(const PlainResult& found, const SafetensorsFile& io, const std::string& block) {
  const ConstTensorView* ids = nullptr;
  const ConstTensorView* weights = nullptr;
  for (int i = 0; i < 3; ++i) {
    const ConstTensorView* t = io.find(block + ".router_out" + std::to_string(i));
    if (t == nullptr || t->size(-1) != static_cast<std::int64_t>(found.ids[0].size())) continue;
    (t->dtype == DType::i64 ? ids : weights) = t;
  }
  if (ids == nullptr) return false;
  for (std::size_t m = 0; m < found.ids.size(); ++m) {
    std::map<std::int64_t, double> expected;
    std::map<std::int64_t, double> chosen;
    for (std::size_t k = 0; k < found.ids[m].size(); ++k) {
      const std::size_t at = m * found.ids[m].size() + k;
      expected[ids->as<std::int64_t>()[at]] = weights == nullptr ? 0 : weights->as<float>()[at];
      chosen[found.ids[m][k]] = weights == nullptr ? 0 : found.weights[m][k];
    }
    EXPECT_EQ(chosen.size(), expected.size());
    for (const auto& [id, weight] : expected) {
      EXPECT_TRUE(chosen.contains(id)) << block << " row " << m << " expert " << id;
      EXPECT_NEAR(chosen[id], weight, 1e-5 * (1 + std::abs(weight))) << block << " row " << m << " expert " << id;
    }
  }
  return true;
}

class CheckpointNumbers : public ::testing::TestWithParam<std::string> {};

TEST_P(CheckpointNumbers, EveryBlockMatchesThePublicImplementation) {
  const Checkpoint checkpoint(GetParam());
  const SafetensorsFile io((fs::path(GetParam()) / "io.safetensors").string());
  // The tensors of the sample model outside its blocks are not the blocks' business; inside, all must be known.
  EXPECT_TRUE(checkpoint.not_understood().empty()) << checkpoint.not_understood().front();
  std::set<std::string> inputs;
  for (const NamedTensor& t : io.tensors())
    if (t.name.ends_with(".input")) inputs.insert(t.name.substr(0, t.name.size() - 6));
  std::set<std::string> names;
  for (const BlockInfo& block : checkpoint.blocks()) names.insert(block.name);
  EXPECT_EQ(names, inputs);

  for (const BlockInfo& block : checkpoint.blocks()) {
    const LayerWeights weights = checkpoint.load(block.name);
    const ConstTensorView& input = io.get(block.name + ".input");
    const std::int64_t num_tokens = std::min<std::int64_t>(input.numel() / block.config.hidden_size, 64);
    const PlainResult found = plain_layer(block.config, weights, input.as<float>(), num_tokens);
    EXPECT_LT(relative_error(found.output, io.get(block.name + ".output").as<float>()), 1e-5) << block.name;
    const bool returns_ids = compare_routing(found, io, block.name);
    const std::set<std::string> without = {"jamba", "llama4_text", "dbrx"};
    EXPECT_EQ(returns_ids, !without.contains(checkpoint.model_type())) << block.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, CheckpointNumbers, ::testing::ValuesIn(folders()), [](const auto& test) {
  std::string name = fs::path(test.param).filename().string();
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace conclave::test
