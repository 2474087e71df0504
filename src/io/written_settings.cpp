// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// fp8 blocks as DeepSeek publishes them, everything else as compressed-tensors does: weights only, since what
// activations are rounded to is the reader's choice.
#include "io/written_settings.hpp"

#include <array>

#include "base/error.hpp"
#include "conclave/quantise_checkpoint.hpp"

namespace conclave {
namespace {

using nlohmann::json;

constexpr std::array kWritable = {
    QuantKey::fp8_block128,    QuantKey::fp8_channel,     QuantKey::fp8_tensor,       QuantKey::int8_channel,
    QuantKey::int4_group32,    QuantKey::int4_group64,    QuantKey::int4_group128,    QuantKey::int4_channel,
    QuantKey::int4_group32_zp, QuantKey::int4_group64_zp, QuantKey::int4_group128_zp, QuantKey::int4_channel_zp,
    QuantKey::mxfp4,           QuantKey::nvfp4,
};

/// How the tool calls what `key` is: a layout, and the arguments of its weights.
std::string_view format_name(QuantKey key) {
  const QuantScheme scheme = scheme_of(key);
  if (key == QuantKey::mxfp4) return "mxfp4-pack-quantized";
  if (key == QuantKey::nvfp4) return "nvfp4-pack-quantized";
  return scheme.element == DType::fp8_e4m3 ? "float-quantized" : "pack-quantized";
}

json weight_arguments(QuantKey key) {
  const QuantScheme scheme = scheme_of(key);
  const GroupShape group = scheme.scale->group;
  json a{{"num_bits", scheme.bits},
         {"type", scheme.element == DType::i8 ? "int" : "float"},
         {"symmetric", scheme.symmetric},
         {"dynamic", false},
         {"group_size", nullptr}};
  if (group.cols >= 0) {
    a["group_size"] = group.cols;
    a["strategy"] = key == QuantKey::nvfp4 ? "tensor_group" : "group";
  } else {
    a["strategy"] = group.rows == 1 ? "channel" : "tensor";
  }
  if (key == QuantKey::mxfp4) a["scale_dtype"] = "torch.uint8";
  return a;
}

}  // namespace

std::span<const QuantKey> writable_quant_keys() noexcept {
  return kWritable;
}

json written_settings(QuantKey key, const std::vector<std::string>& floats) {
  if (std::find(kWritable.begin(), kWritable.end(), key) == kWritable.end()) {
    std::string known;
    for (QuantKey k : kWritable) known += (known.empty() ? "" : ", ") + std::string(name_of(k));
    fail(ErrorKind::invalid_argument, "quantise: given {}, expected one of {}", name_of(key), known);
  }
  if (key == QuantKey::fp8_block128)
    return {{"quant_method", "fp8"},
            {"fmt", "e4m3"},
            {"activation_scheme", "dynamic"},
            {"weight_block_size", {128, 128}},
            {"modules_to_not_convert", floats}};
  const std::string format(format_name(key));
  const json group{{"targets", {"Linear"}},
                   {"weights", weight_arguments(key)},
                   {"input_activations", nullptr},
                   {"output_activations", nullptr},
                   {"format", format}};
  return {{"quant_method", "compressed-tensors"},
          {"quantization_status", "compressed"},
          {"format", format},
          {"config_groups", {{"group_0", group}}},
          {"ignore", floats},
          {"kv_cache_scheme", nullptr}};
}

}  // namespace conclave
