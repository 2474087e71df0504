// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Block detection, what is refused, and how weights are laid out in memory. The numbers are in
// checkpoint_numbers_test.cpp.
#include "conclave/checkpoint.hpp"

#include <gtest/gtest.h>

#include "io/gather.hpp"
#include "io/model_copy.hpp"

namespace conclave::test {
namespace {

const std::string kBlock = "model.layers.0.mlp";

bool equal_bytes(const ConstTensorView& a, const ConstTensorView& b) {
  return to_string(a) == to_string(b) && std::memcmp(a.data, b.data, static_cast<std::size_t>(a.bytes())) == 0;
}

TEST(Checkpoint, SaysWhatTheFolderHolds) {
  const Checkpoint c(family_folder("mixtral"));
  EXPECT_EQ(c.model_type(), "mixtral");
  EXPECT_EQ(c.folder(), family_folder("mixtral"));
  ASSERT_EQ(c.blocks().size(), 2U);
  const BlockInfo& block = c.block("model.layers.1.mlp");
  EXPECT_EQ(block.num_tensors, 8 * 3 + 1);
  EXPECT_EQ(block.weight_bytes, 2 * (8 * 3 * 80 * 64 + 8 * 64));
  EXPECT_EQ(block.config.dtype, DType::bf16);
  EXPECT_EQ(block.config.weight_dtype, DType::bf16);
  EXPECT_EQ(block.quant, QuantConfig{});
  expect_error(ErrorKind::invalid_argument, {"no MoE block \"x\"", "model.layers.0.mlp, model.layers.1.mlp"},
               [&] { (void)c.block("x"); });
}

TEST(Checkpoint, BlocksComeInTheOrderOfLayers) {
  ModelCopy model("mixtral");
  model.config["num_hidden_layers"] = 12;
  const std::vector<NamedTensor> two = model.tensors;
  model.tensors.clear();
  for (int layer = 0; layer < 12; ++layer)
    for (NamedTensor t : two) {
      if (!t.name.starts_with("model.layers.0.")) continue;
      t.name = "model.layers." + std::to_string(layer) + t.name.substr(14);
      model.tensors.push_back(t);
    }
  model.write();
  const Checkpoint c = model.open();
  ASSERT_EQ(c.blocks().size(), 12U);
  EXPECT_EQ(c.blocks()[2].name, "model.layers.2.mlp");
  EXPECT_EQ(c.blocks()[11].name, "model.layers.11.mlp");
}

TEST(Checkpoint, RowsOfGateComeBeforeRowsOfUp) {
  const ModelCopy model("mixtral");
  const Checkpoint c(family_folder("mixtral"));
  const LayerWeights w = c.load(kBlock);
  for (std::int64_t e : {0, 5}) {
    const std::string prefix = "model.layers.0.block_sparse_moe.experts." + std::to_string(e);
    const ConstTensorView w13 = w.experts.w13.at(e);
    EXPECT_TRUE(equal_bytes(w13.narrow(0, 0, 80), model.source.get(prefix + ".w1.weight")));
    EXPECT_TRUE(equal_bytes(w13.narrow(0, 80, 80), model.source.get(prefix + ".w3.weight")));
    EXPECT_TRUE(equal_bytes(w.experts.w2.at(e), model.source.get(prefix + ".w2.weight")));
  }
}

TEST(Checkpoint, MatricesAlreadyInOrderAreViewsOfTheFile) {
  const Checkpoint c(family_folder("granitemoe"));
  const std::string name = "model.layers.0.block_sparse_moe";
  const LayerWeights first = c.load(name);
  const LayerWeights second = c.load(name);
  EXPECT_EQ(first.experts.w13.data, second.experts.w13.data);
  EXPECT_EQ(first.experts.w2.data, second.experts.w2.data);
}

TEST(Checkpoint, WeightsGivenUpAreReadAgainByTheNextLoad) {
  for (const char* family : {"granitemoe", "mixtral", "gpt_oss", "dbrx"}) {
    const Checkpoint c(family_folder(family));
    const std::string& name = c.blocks()[0].name;
    const Tensor before(c.load(name).experts.w13.dtype, {c.load(name).experts.w13.numel()});
    copy(c.load(name).experts.w13, before);
    LayerWeights w = c.load(name);
    ASSERT_TRUE(w.experts.give_up);
    w.experts.give_up(w.experts.w13.data, w.experts.w13.bytes());
    w.experts.give_up(w.experts.w2.data, w.experts.w2.bytes());
    const LayerWeights again = c.load(name);
    EXPECT_EQ(std::memcmp(again.experts.w13.data, before.view().data, static_cast<std::size_t>(before.view().bytes())),
              0)
        << family;
  }
}

TEST(Checkpoint, GivingUpGatheredWeightsFreesThem) {
  const Checkpoint c(family_folder("mixtral"));
  LayerWeights w = c.load(kBlock);
  w.experts.give_up(w.experts.w13.data, w.experts.w13.bytes());
  // Storage is anonymous memory: pages that went back to the system read as zero.
  const auto* bytes = w.experts.w13.as<std::uint8_t>();
  EXPECT_TRUE(std::all_of(bytes, bytes + w.experts.w13.bytes(), [](std::uint8_t b) { return b == 0; }));
}

TEST(Checkpoint, WeightsOutliveTheCheckpoint) {
  for (const char* family : {"granitemoe", "qwen2_moe"}) {
    LayerWeights w;
    {
      const Checkpoint c(family_folder(family));
      w = c.load(c.blocks()[0].name);
    }
    double sum = 0;
    for (std::int64_t i = 0; i < w.experts.w2.numel(); ++i) sum += w.experts.w2.as<std::uint16_t>()[i];
    EXPECT_GT(sum, 0);
  }
}

TEST(Checkpoint, ReadsExpertsFusedAsTheModulesHoldThem) {
  ModelCopy model("qwen3_moe");
  const Checkpoint original(family_folder("qwen3_moe"));
  std::vector<LayerWeights> kept;
  std::erase_if(model.tensors, [](const NamedTensor& t) { return t.name.find(".experts.") != std::string::npos; });
  for (const BlockInfo& block : original.blocks()) {
    kept.push_back(original.load(block.name));
    model.tensors.push_back({block.name + ".experts.gate_up_proj", kept.back().experts.w13});
    model.tensors.push_back({block.name + ".experts.down_proj", kept.back().experts.w2});
  }
  model.write();
  const Checkpoint fused = model.open();
  EXPECT_TRUE(fused.not_understood().empty());
  EXPECT_TRUE(equal_bytes(fused.load(kBlock).experts.w13, kept[0].experts.w13));
  EXPECT_EQ(fused.blocks()[0].config, original.blocks()[0].config);
}

TEST(Checkpoint, ReadsNamesOfTheModuleTreeToo) {
  for (const char* family : {"mixtral", "phimoe", "minimax", "minimax_m2"}) {
    ModelCopy model(family);
    model.rename([&](std::string name) {
      name.replace(name.find("block_sparse_moe"), 16, "mlp");
      if (std::string(family) == "phimoe" && name.ends_with(".gate.weight"))
        name.replace(name.find(".gate."), 6, ".router.");
      return name;
    });
    model.write();
    EXPECT_EQ(model.open().blocks()[0].name, kBlock) << family;
    EXPECT_TRUE(model.open().not_understood().empty()) << family;
  }
}

TEST(Checkpoint, KeepsThePrefixOfAModelInsideAnother) {
  ModelCopy model("llama4");
  model.config = {{"model_type", "llama4"}, {"text_config", model.config}};
  model.rename([](const std::string& name) { return "language_model." + name; });
  model.write();
  EXPECT_EQ(model.open().blocks()[1].name, "language_model.model.layers.1.feed_forward");
}

TEST(Checkpoint, LeavesOutTheLayersOfAPredictionHead) {
  ModelCopy model("deepseek_v3");
  const std::vector<NamedTensor> two = model.tensors;
  for (NamedTensor t : two) {
    if (!t.name.starts_with("model.layers.0.")) continue;
    t.name = "model.layers.2." + t.name.substr(15);
    model.tensors.push_back(t);
    t.name = "mtp.layers.0." + t.name.substr(15);
    model.tensors.push_back(t);
  }
  model.write();
  EXPECT_EQ(model.open().blocks().size(), 2U);
  model.config["num_nextn_predict_layers"] = 0;
  model.write();
  expect_error(ErrorKind::bad_file, {"model.safetensors", "model.layers.2.mlp", "layers 0 to 1"},
               [&] { model.open(); });
}

TEST(Checkpoint, ListsTensorsThatNoRuleNames) {
  ModelCopy model("mixtral");
  model.tensors.push_back({"model.layers.0.block_sparse_moe.experts.0.w1.extra", model.tensors[0].view});
  model.write();
  ASSERT_EQ(model.open().not_understood().size(), 1U);
  EXPECT_EQ(model.open().not_understood()[0], "model.layers.0.block_sparse_moe.experts.0.w1.extra");
}

/// The shape of a view without its last row.
ConstTensorView shorter(const ConstTensorView& view) {
  return view.narrow(0, 0, view.size(0) - 1);
}

TEST(Checkpoint, NamesEveryMissingAndMisshapenTensor) {
  for (const char* family :
       {"afmoe", "dbrx", "deepseek_v3", "ernie4_5_moe", "exaone_moe", "gpt_oss", "granitemoe", "hunyuan_v1_moe",
        "jamba", "lfm2_moe", "llama4", "longcat_flash", "minimax_m2", "nemotron_h_latent", "qwen2_moe"}) {
    const ModelCopy whole(family);
    for (const NamedTensor& t : whole.tensors) {
      if (t.name.find("layers.1.") == std::string::npos && t.name.find("blocks.1.") == std::string::npos) continue;
      // One expert stands for all; what a zero expert has of weights is not read.
      if (t.name.find(".experts.") != std::string::npos && t.name.find(".experts.mlp.") == std::string::npos &&
          t.name.find(".experts.3.") == std::string::npos && t.name.find("experts.gate") == std::string::npos &&
          t.name.find("experts.down") == std::string::npos)
        continue;
      if (t.name.find(".mlps.") != std::string::npos) continue;
      ModelCopy missing(family);
      missing.erase(t.name);
      missing.write();
      expect_error(ErrorKind::bad_file, {"model.safetensors", t.name, "missing", "expected"}, [&] { missing.open(); });
      ModelCopy misshapen(family);
      misshapen.tensor(t.name).view = shorter(t.view);
      misshapen.write();
      expect_error(ErrorKind::bad_file,
                   {"model.safetensors", t.name, "given " + to_string(shorter(t.view)), "expected shape ["},
                   [&] { misshapen.open(); });
    }
  }
}

TEST(Checkpoint, RefusesOtherAndMixedDtypes) {
  ModelCopy model("mixtral");
  const std::string name = "model.layers.1.block_sparse_moe.experts.2.w3.weight";
  model.tensor(name).view.dtype = DType::f16;
  model.write();
  expect_error(ErrorKind::bad_file, {name, "given f16[80, 64]", "expected bf16"}, [&] { model.open(); });
  model.tensor(name).view.dtype = DType::i16;
  model.write();
  expect_error(ErrorKind::bad_file, {name, "given i16[80, 64]", "f32, bf16 or f16"}, [&] { model.open(); });
}

TEST(Checkpoint, RefusesMoreExpertsThanTheConfigHas) {
  ModelCopy model("jamba");
  model.config["num_experts"] = 7;
  for (const char* layer : {"0", "1"}) {
    NamedTensor& router = model.tensor(std::string("model.layers.") + layer + ".feed_forward.router.weight");
    router.view = shorter(router.view);
  }
  model.write();
  expect_error(ErrorKind::bad_file, {"feed_forward.experts.7.up_proj.weight", "expected 7"}, [&] { model.open(); });
}

TEST(Checkpoint, RefusesLayersThatConfigAndTensorsDisagreeAbout) {
  ModelCopy model("deepseek_v3");
  model.config["first_k_dense_replace"] = 1;
  model.write();
  expect_error(ErrorKind::bad_file, {"model.layers.0.mlp", "layer 0 is dense", "config.json"}, [&] { model.open(); });
  model.config["first_k_dense_replace"] = 0;
  model.config["num_hidden_layers"] = 3;
  model.write();
  expect_error(ErrorKind::bad_file, {"layer 2 has no expert tensors", "config.json"}, [&] { model.open(); });
}

TEST(Checkpoint, NamesFilesThatAreMissingOrBroken) {
  const ModelCopy model("mixtral");
  expect_error(ErrorKind::io, {"config.json", "No such file"}, [&] { model.open(); });
  model.folder.write("config.json", "{\"model_type\"");
  expect_error(ErrorKind::bad_file, {"config.json", "not JSON"}, [&] { model.open(); });
  model.write_config();
  expect_error(ErrorKind::io, {"neither model.safetensors"}, [&] { model.open(); });
  model.write();
  const std::string bytes = read_file(model.folder.path("model.safetensors"));
  model.folder.write("model.safetensors", bytes.substr(0, bytes.size() / 2));
  expect_error(ErrorKind::bad_file, {"model.safetensors", "truncated"}, [&] { model.open(); });
}

TEST(Checkpoint, ReadsShards) {
  const ModelCopy model("qwen2_moe");
  model.write_shards();
  const Checkpoint sharded = model.open();
  const Checkpoint whole(family_folder("qwen2_moe"));
  EXPECT_TRUE(equal_bytes(sharded.load(kBlock).experts.w13, whole.load(kBlock).experts.w13));
  EXPECT_TRUE(equal_bytes(*sharded.load(kBlock).shared_w13, *whole.load(kBlock).shared_w13));
}

TEST(Gather, TransposesEveryElementSizeAndOddShapes) {
  for (const DType dtype : {DType::u8, DType::bf16, DType::f32, DType::f64}) {
    const std::int64_t rows = 67;
    const std::int64_t cols = 131;
    const Tensor from(dtype, {rows, cols});
    const Tensor to(dtype, {cols, rows});
    const std::int64_t size = bits_of(dtype) / 8;
    for (std::int64_t i = 0; i < rows * cols * size; ++i)
      from.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(i * 31 >> 3);
    transpose(from, to);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < cols; ++c)
        ASSERT_EQ(std::memcmp(from.as<std::uint8_t>() + (r * cols + c) * size,
                              to.as<std::uint8_t>() + (c * rows + r) * size, static_cast<std::size_t>(size)),
                  0);
  }
}

TEST(Gather, WidensSixteenBitFloatsExactly) {
  const std::uint16_t half[] = {0x3c00, 0xc000, 0x0001, 0x03ff, 0x7bff, 0x8000, 0x7c00, 0x7e00};
  const Tensor wide = widened(ConstTensorView(half, DType::f16, {8}));
  const float* f = wide.as<float>();
  EXPECT_EQ(f[0], 1.0F);
  EXPECT_EQ(f[1], -2.0F);
  EXPECT_EQ(f[2], 0x1p-24F);
  EXPECT_EQ(f[3], 1023 * 0x1p-24F);
  EXPECT_EQ(f[4], 65504.0F);
  EXPECT_TRUE(f[5] == 0.0F && std::signbit(f[5]));
  EXPECT_TRUE(std::isinf(f[6]));
  EXPECT_TRUE(std::isnan(f[7]));
  const std::uint16_t brain[] = {0x3f80, 0xc049};
  EXPECT_EQ(widened(ConstTensorView(brain, DType::bf16, {2})).as<float>()[1], -3.140625F);
}

}  // namespace
}  // namespace conclave::test
