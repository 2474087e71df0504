// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// GGUF files that the public Python package wrote: the blocks compute what the package decodes, or what the model's own
// implementation gave; and files that are no such files are refused.
#include <gtest/gtest.h>

#include <ostream>

#include "io/files.hpp"
#include "io/format_block.hpp"
#include "io/gguf_config.hpp"
#include "io/gguf_header.hpp"

namespace conclave::test {
namespace {

struct ExpectedGguf {
  std::string folder;
  std::string model_type;
  QuantKey key;
  std::string why;  ///< Decoded, because.
  DType weight_dtype;
  double error;
};

void PrintTo(const ExpectedGguf& expected, std::ostream* out) {
  *out << expected.folder;
}

class GgufBlock : public ::testing::TestWithParam<ExpectedGguf> {};

TEST_P(GgufBlock, ComputesWhatItShould) {
  const ExpectedGguf& p = GetParam();
  const Checkpoint checkpoint(format_folder(p.folder) + "/model.gguf");
  ASSERT_EQ(checkpoint.blocks().size(), 1U);
  EXPECT_TRUE(checkpoint.not_understood().empty()) << checkpoint.not_understood().front();
  const BlockInfo& block = checkpoint.blocks()[0];
  EXPECT_EQ(checkpoint.model_type(), p.model_type);
  EXPECT_EQ(block.quant.weights, p.key);
  EXPECT_EQ(block.decoded_because.empty(), p.why.empty()) << block.decoded_because;
  EXPECT_THAT(block.decoded_because, ::testing::HasSubstr(p.why));
  EXPECT_EQ(block.config.weight_dtype, p.weight_dtype);
  EXPECT_LT(block_error(checkpoint, format_folder(p.folder) + "/io.safetensors"), p.error);
}

// Those of whole families are compared with an implementation that computed in f32.
INSTANTIATE_TEST_SUITE_P(
    Files, GgufBlock,
    ::testing::Values(ExpectedGguf{"gguf_q4_0", "qwen3_moe", QuantKey::int4_group32_zp, "", DType::f32, 2e-6},
                      ExpectedGguf{"gguf_q8_0", "qwen2_moe", QuantKey::none, "groups of 32", DType::f32, 2e-6},
                      ExpectedGguf{"gguf_mxfp4", "qwen3_moe", QuantKey::mxfp4, "", DType::f32, 2e-6},
                      ExpectedGguf{"gguf_mixed", "qwen3_moe", QuantKey::none, "floats", DType::f32, 2e-6},
                      ExpectedGguf{"gguf_f16", "qwen3_moe", QuantKey::none, "", DType::f16, 2e-6},
                      ExpectedGguf{"gguf_gpt_oss", "gpt_oss", QuantKey::none, "", DType::bf16, 1e-5},
                      ExpectedGguf{"gguf_deepseek_v3", "deepseek_v3", QuantKey::none, "", DType::bf16, 1e-5},
                      ExpectedGguf{"gguf_deepseek_v2", "deepseek_v2", QuantKey::none, "", DType::bf16, 1e-5},
                      ExpectedGguf{"gguf_mixtral", "mixtral", QuantKey::none, "", DType::bf16, 1e-5},
                      ExpectedGguf{"gguf_olmoe", "olmoe", QuantKey::none, "", DType::bf16, 1e-5}),
    [](const auto& test) { return test.param.folder; });

TEST(Gguf, KQuantsAreRefusedByName) {
  expect_error(ErrorKind::bad_file, {"gguf_q6_k/model.gguf", "blk.0.ffn_gate_exps.weight", "Q6_K", "Q4_0 or MXFP4"},
               [] { Checkpoint(format_folder("gguf_q6_k") + "/model.gguf"); });
}

std::string sample_bytes() {
  return read_file(format_folder("gguf_q4_0") + "/model.gguf");
}

void expect_header_refused(const std::string& bytes, std::initializer_list<std::string> words) {
  expect_error(ErrorKind::bad_file, words, [&] { parse_gguf_header(bytes_of_text(bytes), "x.gguf"); });
}

TEST(Gguf, EveryTruncationIsRefused) {
  const std::string bytes = sample_bytes();
  const GgufHeader whole = parse_gguf_header(bytes_of_text(bytes), "x.gguf");
  EXPECT_EQ(whole.tensors.size(), 5U);
  EXPECT_EQ(whole.metadata["qwen3moe.expert_count"], 3);
  std::int64_t end = 0;
  for (const GgufEntry& e : whole.tensors) end = std::max(end, e.begin + e.bytes);
  for (std::int64_t size = 0; size < end; size += size < 1000 ? 1 : 97)
    expect_header_refused(bytes.substr(0, static_cast<std::size_t>(size)), {"x.gguf"});
}

TEST(Gguf, OtherMagicAndVersion) {
  std::string bytes = sample_bytes();
  bytes[0] = 'g';
  expect_header_refused(bytes, {"x.gguf", "GGUF"});
  bytes = sample_bytes();
  bytes[4] = 2;
  expect_header_refused(bytes, {"version 2", "expected 3"});
}

TEST(Gguf, ATensorBeyondTheEndAndAnOffsetThatIsNotAligned) {
  const std::string name = "blk.0.ffn_up_exps.weight";
  std::string bytes = sample_bytes();
  // Name, rank, three extents, type, offset.
  const std::size_t offset = bytes.find(name) + name.size() + 4 + 3 * 8 + 4;
  bytes[offset] = 1;
  expect_header_refused(bytes, {name, "multiple of 32"});
  bytes = sample_bytes();
  bytes[offset + 5] = 1;
  expect_header_refused(bytes, {name, "ends at byte"});
  bytes = sample_bytes();
  bytes[offset - 4 - 24 + 4] = 1;
  expect_header_refused(bytes, {name, "ends at byte"});
}

TEST(Gguf, ArchitecturesAndKeys) {
  nlohmann::json keys{{"general.architecture", "mamba"}};
  expect_error(ErrorKind::bad_file, {"x.gguf", "mamba", "qwen3moe", "deepseek2"}, [&] { gguf_config(keys, "x.gguf"); });
  keys["split.count"] = 3;
  expect_error(ErrorKind::bad_file, {"x.gguf", "split.count", "given 3"}, [&] { gguf_config(keys, "x.gguf"); });
  keys = {{"general.architecture", "qwen3moe"}, {"qwen3moe.block_count", 1}, {"qwen3moe.embedding_length", 32}};
  expect_error(ErrorKind::bad_file, {"qwen3moe.expert_count", "missing"}, [&] { gguf_config(keys, "x.gguf"); });
}

}  // namespace
}  // namespace conclave::test
