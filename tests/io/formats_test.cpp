// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Quantised checkpoints of tests/data/formats, which public packages or an independent script wrote: what is read gives
// the outputs computed from their own numbers, in the codes that were stored; and damaged ones are refused by name.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <ostream>

#include "io/format_block.hpp"
#include "io/model_copy.hpp"

namespace conclave::test {
namespace {

using nlohmann::json;

struct Expected {
  std::string folder;
  QuantKey key;     ///< Computed from these codes; none: decoded, because of
  std::string why;  ///< this.
};

void PrintTo(const Expected& expected, std::ostream* out) {
  *out << expected.folder;
}

class Formats : public ::testing::TestWithParam<Expected> {};

TEST_P(Formats, TheBlockComputesWhatItsOwnNumbersGive) {
  const Checkpoint checkpoint(format_folder(GetParam().folder));
  ASSERT_EQ(checkpoint.blocks().size(), 1U);
  EXPECT_TRUE(checkpoint.not_understood().empty()) << checkpoint.not_understood().front();
  const BlockInfo& block = checkpoint.blocks()[0];
  EXPECT_EQ(block.quant.weights, GetParam().key);
  EXPECT_NE(block.format, "");
  EXPECT_THAT(block.decoded_because, ::testing::HasSubstr(GetParam().why));
  EXPECT_EQ(block.decoded_because.empty(), GetParam().why.empty());
  EXPECT_EQ(block.config.dtype, DType::bf16);

  EXPECT_LT(block_error(checkpoint, format_folder(GetParam().folder) + "/io.safetensors"), 2e-6);
}

INSTANTIATE_TEST_SUITE_P(
    All, Formats,
    ::testing::Values(
        Expected{"deepseek_fp8", QuantKey::fp8_block128, ""},
        Expected{"deepseek_fp8_short", QuantKey::none, "intermediate_size 40"},
        Expected{"fp8_tensor", QuantKey::fp8_tensor, ""}, Expected{"gpt_oss_mxfp4", QuantKey::mxfp4, ""},
        Expected{"ct_fp8_tensor", QuantKey::fp8_tensor, ""}, Expected{"ct_fp8_channel", QuantKey::fp8_channel, ""},
        Expected{"ct_fp8_block", QuantKey::fp8_block128, ""}, Expected{"ct_int8_channel", QuantKey::int8_channel, ""},
        Expected{"ct_int8_packed", QuantKey::int8_channel, ""}, Expected{"ct_int4_group32", QuantKey::int4_group32, ""},
        Expected{"ct_int4_group64_zp", QuantKey::int4_group64_zp, ""},
        Expected{"ct_int4_group128", QuantKey::int4_group128, ""},
        Expected{"ct_int4_channel_zp", QuantKey::int4_channel_zp, ""}, Expected{"ct_nvfp4", QuantKey::nvfp4, ""},
        Expected{"ct_mxfp4", QuantKey::mxfp4, ""}, Expected{"modelopt_nvfp4", QuantKey::nvfp4, ""},
        Expected{"modelopt_fp8", QuantKey::fp8_tensor, ""}, Expected{"gptq_group32", QuantKey::int4_group32, ""},
        Expected{"gptq_v1_zp", QuantKey::int4_group32_zp, ""}, Expected{"gptq_v2_zp", QuantKey::int4_group32_zp, ""},
        Expected{"gptq_act_order", QuantKey::none, "desc_act"}, Expected{"awq", QuantKey::int4_group32_zp, ""}),
    [](const auto& test) { return test.param.folder; });

/// A fixture loaded to be damaged. Tensors that change get memory of their own.
struct Damaged : ModelCopy {
  explicit Damaged(const std::string& name) : ModelCopy("../formats/" + name) {}

  template <class T>
  T* own(const std::string& name) {
    NamedTensor& t = tensor(name);
    const ConstTensorView v = t.view;
    copies.emplace_back(v.dtype, std::span(v.shape).first(static_cast<std::size_t>(v.rank)));
    std::memcpy(copies.back().view().data, v.data, static_cast<std::size_t>(v.bytes()));
    t.view = copies.back();
    return copies.back().as<T>();
  }
  void replace(const std::string& name, DType dtype, std::initializer_list<std::int64_t> shape) {
    copies.emplace_back(dtype, shape);
    tensor(name).view = copies.back();
  }
  json& settings() { return config["quantization_config"]; }

  void expect_refused(std::initializer_list<std::string> words) const {
    write();
    expect_error(ErrorKind::bad_file, words, [&] { open().load("model.layers.0.mlp"); });
  }

  std::vector<Tensor> copies;
};

const std::string kUp = "model.layers.0.mlp.experts.1.up_proj";

TEST(FormatErrors, ScalesOfAWrongShape) {
  Damaged m("deepseek_fp8");
  m.replace(kUp + ".weight_scale_inv", DType::f32, {2, 1});
  m.expect_refused({"model.safetensors", kUp + ".weight_scale_inv", "f32[2, 1]", "[1, 2]"});
}

TEST(FormatErrors, AScaleThatIsNoNumber) {
  Damaged m("ct_int8_channel");
  m.own<float>(kUp + ".weight_scale")[7] = std::numeric_limits<float>::quiet_NaN();
  m.expect_refused({"model.safetensors", kUp + ".weight_scale", "element 7", "nan", "finite"});
  Damaged codes("ct_nvfp4");
  codes.own<std::uint8_t>(kUp + ".weight_scale")[3] = 0x7F;
  codes.expect_refused({kUp + ".weight_scale", "element 3", "nan"});
}

TEST(FormatErrors, AGroupThatDoesNotDivide) {
  Damaged m("ct_int4_group32");
  m.settings()["config_groups"]["group_0"]["weights"]["group_size"] = 128;
  m.expect_refused({"model.safetensors", "experts.0.gate_proj", "64", "128"});
  Damaged odd("gptq_group32");
  odd.settings()["group_size"] = 24;
  odd.expect_refused({"model.safetensors", "experts.0.gate_proj", "24"});
}

TEST(FormatErrors, UnknownMethodsAndFormats) {
  Damaged m("awq");
  m.settings()["quant_method"] = "quip";
  m.expect_refused({"config.json", "quant_method", "quip", "compressed-tensors", "awq"});
  Damaged format("ct_nvfp4");
  format.settings()["format"] = "marlin-24";
  format.expect_refused({"config.json", "format", "marlin-24", "pack-quantized"});
  Damaged algorithm("modelopt_fp8");
  algorithm.settings()["quant_algo"] = "W4A8_AWQ";
  algorithm.expect_refused({"config.json", "quant_algo", "W4A8_AWQ", "NVFP4"});
  Damaged blocks("deepseek_fp8");
  blocks.settings()["weight_block_size"] = {64, 64};
  blocks.expect_refused({"config.json", "weight_block_size", "64", "[128, 128]"});
}

TEST(FormatErrors, MissingScalesAndWrongTypes) {
  Damaged m("deepseek_fp8");
  m.erase(kUp + ".weight_scale_inv");
  m.expect_refused({"model.safetensors", kUp + ".weight_scale_inv", "missing"});
  Damaged type("ct_int4_group32");
  type.replace(kUp + ".weight_packed", DType::i16, {32, 8});
  type.expect_refused({kUp + ".weight_packed", "i16", "i32"});
  Damaged shape("ct_int4_group32");
  shape.own<std::int64_t>(kUp + ".weight_shape")[1] = 63;
  shape.expect_refused({kUp + ".weight_shape", "[32, 63]", "[32, 64]"});
}

TEST(FormatErrors, PartsThatTheSettingsDoNotAnnounce) {
  // Zero points of a model that says it has none: its numbers would be others.
  Damaged m("ct_int4_group64_zp");
  m.settings()["config_groups"]["group_0"]["weights"]["symmetric"] = true;
  m.expect_refused({"model.safetensors", "weight_zero_point", "i32", "none beside the codes"});
  Damaged zeros("ct_int8_channel");
  zeros.copies.emplace_back(DType::i8, std::initializer_list<std::int64_t>{24, 1});
  zeros.tensors.push_back({kUp + ".weight_zero_point", zeros.copies.back()});
  zeros.write();
  EXPECT_EQ(zeros.open().not_understood(), std::vector<std::string>{kUp + ".weight_zero_point"});
}

TEST(FormatErrors, GptqSaysWhatItsTensorsDoNot) {
  Damaged order("gptq_act_order");
  order.settings()["desc_act"] = false;
  order.expect_refused({"g_idx", "desc_act is false"});
  Damaged zero("gptq_v1_zp");
  zero.own<std::uint32_t>(kUp + ".qzeros")[0] = 0x7777777F;
  zero.expect_refused({kUp + ".qzeros", "given 15", "0 to 14"});
  Damaged symmetric("gptq_group32");
  symmetric.own<std::uint32_t>(kUp + ".qzeros")[0] = 0x77777767;
  symmetric.expect_refused({kUp + ".qzeros", "output 1", "7", "expected 8"});
}

TEST(FormatErrors, MoreExpertsThanTheConfigurationSays) {
  Damaged m("ct_int4_group32");
  m.config["num_experts"] = 2;
  m.replace("model.layers.0.mlp.gate.weight", DType::bf16, {2, 64});
  m.expect_refused({"model.safetensors", "experts.2.up_proj", "expected 2"});
}

TEST(FormatErrors, ALayerWithoutCodesIsFloats) {
  // The settings speak of the model; a tool leaves out the layers on its ignore list.
  Damaged m("ct_int8_channel");
  for (NamedTensor& t : m.tensors) {
    if (!t.name.ends_with("proj.weight")) continue;
    const ConstTensorView v = t.view;
    m.copies.emplace_back(DType::bf16, std::span(v.shape).first(2));
    t.view = m.copies.back();
  }
  std::erase_if(m.tensors, [](const NamedTensor& t) { return t.name.ends_with("_scale"); });
  m.write();
  const Checkpoint checkpoint = m.open();
  EXPECT_EQ(checkpoint.blocks()[0].quant.weights, QuantKey::none);
  EXPECT_EQ(checkpoint.blocks()[0].format, "");
  EXPECT_EQ(checkpoint.blocks()[0].config.weight_dtype, DType::bf16);
}

}  // namespace
}  // namespace conclave::test
