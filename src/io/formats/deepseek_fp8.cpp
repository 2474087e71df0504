// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// quant_method "fp8", as DeepSeek publishes it: e4m3 codes, and beside each projection a decoding factor for every
// block of 128 x 128, or one for the whole.
#include <fmt/format.h>

#include "io/formats/coded_format.hpp"
#include "io/formats/list.hpp"

namespace conclave::formats {

std::shared_ptr<const WeightFormat> deepseek_fp8(const ModelConfig& settings) {
  if (settings.text("quant_method", "") != "fp8") return nullptr;
  settings.expect("fmt", {"e4m3", "float8_e4m3fn"});
  const auto block = settings.integers("weight_block_size");
  if (block && *block != std::vector<std::int64_t>{128, 128})
    settings.refuse("weight_block_size", fmt::format("[128, 128] or null, not [{}]", fmt::join(*block, ", ")));
  // The name says "inverse" of the factor with which the tool encoded: it decodes. Tools that know one factor for a
  // whole projection call it weight_scale.
  return make_coded_format({.name = "fp8",
                            .key = block ? QuantKey::fp8_block128 : QuantKey::fp8_tensor,
                            .codes = {".weight"},
                            .code_dtypes = {DType::fp8_e4m3},
                            .scale = {".weight_scale_inv", ".weight_scale"},
                            .unused = {".input_scale", ".activation_scale"}});
}

}  // namespace conclave::formats
