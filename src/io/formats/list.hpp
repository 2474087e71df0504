// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// One declaration for each format file of this folder; weight_format.cpp has the list.
#pragma once

#include "io/formats/weight_format.hpp"

namespace conclave::formats {

std::shared_ptr<const WeightFormat> deepseek_fp8(const ModelConfig& settings);
std::shared_ptr<const WeightFormat> gpt_oss_mxfp4(const ModelConfig& settings);
std::shared_ptr<const WeightFormat> compressed_tensors(const ModelConfig& settings);
std::shared_ptr<const WeightFormat> modelopt(const ModelConfig& settings);
std::shared_ptr<const WeightFormat> gptq(const ModelConfig& settings);
std::shared_ptr<const WeightFormat> awq(const ModelConfig& settings);

/// GGUF says at each tensor how it is stored. Null for types that are no blocks.
std::shared_ptr<const WeightFormat> gguf_blocks(std::string_view block_type);

}  // namespace conclave::formats
