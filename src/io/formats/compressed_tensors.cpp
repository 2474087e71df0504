// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// quant_method "compressed-tensors": one of several layouts by `format`, with the numbers' type, width and grouping in
// config_groups.
#include <array>

#include "base/error.hpp"
#include "io/formats/coded_format.hpp"
#include "io/formats/int4.hpp"
#include "io/formats/list.hpp"

namespace conclave::formats {
namespace {

using Make = CodedLayout (*)(const ModelConfig& weights);

QuantKey float_key(const ModelConfig& w) {
  w.expect("num_bits", {8});
  w.expect("type", {"float"});
  w.expect("symmetric", {true});
  const std::string strategy = w.text("strategy", "");
  if (strategy == "tensor") return QuantKey::fp8_tensor;
  if (strategy == "channel") return QuantKey::fp8_channel;
  if (strategy == "block") {
    if (w.integers("block_structure") != std::vector<std::int64_t>{128, 128}) w.refuse("block_structure", "[128, 128]");
    return QuantKey::fp8_block128;
  }
  w.refuse("strategy", "tensor, channel or block");
}

QuantKey int8_key(const ModelConfig& w) {
  w.expect("num_bits", {8});
  w.expect("type", {"int"});
  w.expect("symmetric", {true});
  const std::string strategy = w.text("strategy", "");
  if (strategy == "tensor") return QuantKey::int8_tensor;
  if (strategy == "channel") return QuantKey::int8_channel;
  if (strategy != "group") w.refuse("strategy", "tensor, channel or group");
  w.expect("group_size", {128});
  return QuantKey::int8_group128;
}

CodedLayout float_quantized(const ModelConfig& w) {
  return {.key = float_key(w), .codes = {".weight"}, .code_dtypes = {DType::fp8_e4m3}, .scale = {".weight_scale"}};
}

CodedLayout int_quantized(const ModelConfig& w) {
  return {.key = int8_key(w), .codes = {".weight"}, .code_dtypes = {DType::i8}, .scale = {".weight_scale"}};
}

CodedLayout naive_quantized(const ModelConfig& w) {
  return w.text("type", "int") == "float" ? float_quantized(w) : int_quantized(w);
}

/// Two's complement with the highest bit flipped counts from the lowest code, as the library's halves of bytes do.
CodedLayout pack_quantized(const ModelConfig& w) {
  CodedLayout layout{.codes = {".weight_packed"},
                     .unit = CodeUnit::word,
                     .code_dtypes = {DType::i32},
                     .scale = {".weight_scale"},
                     .shape = ".weight_shape"};
  // Columns in the order of their groups ("group") have an index of their own, which nothing writes any more.
  w.expect("actorder", {"weight", "static", "dynamic", false});
  if (w.integer({"num_bits"}, 4) == 8) {
    layout.key = int8_key(w);
    layout.flip = 0x80;
    return layout;
  }
  w.expect("num_bits", {4});
  w.expect("type", {"int"});
  const std::string strategy = w.text("strategy", "");
  if (strategy != "group" && strategy != "channel") w.refuse("strategy", "group or channel");
  const bool zero_points = !w.boolean("symmetric", true);
  layout.key = int4_key(strategy == "channel" ? -1 : w.integer({"group_size"}), zero_points);
  if (layout.key == QuantKey::none) w.refuse("group_size", "32, 64 or 128");
  if (zero_points) layout.zero_point = ".weight_zero_point";
  return layout;
}

void expect_fp4(const ModelConfig& w, std::int64_t group_size) {
  w.expect("num_bits", {4});
  w.expect("type", {"float"});
  w.expect("symmetric", {true});
  w.expect("group_size", {group_size});
}

CodedLayout nvfp4_pack_quantized(const ModelConfig& w) {
  expect_fp4(w, 16);
  return {.key = QuantKey::nvfp4,
          .codes = {".weight_packed"},
          .code_dtypes = {DType::u8},
          .scale = {".weight_scale"},
          .global_scale = ".weight_global_scale",
          .global_encodes = true};
}

CodedLayout mxfp4_pack_quantized(const ModelConfig& w) {
  expect_fp4(w, 32);
  return {.key = QuantKey::mxfp4, .codes = {".weight_packed"}, .code_dtypes = {DType::u8}, .scale = {".weight_scale"}};
}

CodedLayout mxfp8_quantized(const ModelConfig& w) {
  w.expect("num_bits", {8});
  w.expect("type", {"float"});
  w.expect("group_size", {32});
  return {.key = QuantKey::mxfp8, .codes = {".weight"}, .code_dtypes = {DType::fp8_e4m3}, .scale = {".weight_scale"}};
}

struct Row {
  std::string_view format;
  Make make;
};
constexpr std::array<Row, 7> kRows{{{"float-quantized", float_quantized},
                                    {"int-quantized", int_quantized},
                                    {"naive-quantized", naive_quantized},
                                    {"pack-quantized", pack_quantized},
                                    {"nvfp4-pack-quantized", nvfp4_pack_quantized},
                                    {"mxfp4-pack-quantized", mxfp4_pack_quantized},
                                    {"mxfp8-quantized", mxfp8_quantized}}};

[[noreturn]] void refuse_format(const ModelConfig& settings) {
  std::string known;
  for (const Row& row : kRows) known += (known.empty() ? "" : ", ") + std::string(row.format);
  settings.refuse("format", known);
}

/// The one group of settings; several (one for attention, another for experts) would need the matching of module names.
ModelConfig only_group(const ModelConfig& settings) {
  const ModelConfig groups = settings.section("config_groups");
  const std::vector<std::string> names = groups.keys();
  if (names.size() != 1) settings.refuse("config_groups", "one group");
  return groups.section(names.front());
}

}  // namespace

std::shared_ptr<const WeightFormat> compressed_tensors(const ModelConfig& settings) {
  if (settings.text("quant_method", "") != "compressed-tensors") return nullptr;
  const ModelConfig group = only_group(settings);
  const std::string format = group.text("format", settings.text("format", ""));
  for (const Row& row : kRows) {
    if (row.format != format) continue;
    CodedLayout layout = row.make(group.section("weights"));
    layout.name = "compressed-tensors " + format;
    layout.unused = {".input_scale", ".input_global_scale", ".input_zero_point"};
    return make_coded_format(std::move(layout));
  }
  refuse_format(settings);
}

}  // namespace conclave::formats
