// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// quant_method "mxfp4", as gpt-oss is published: all experts in one tensor of blocks of 32 elements and one of scales.
// Unlike the floats of the same model, the matrices are not transposed: [experts, outputs, inputs].
#include "io/formats/coded_format.hpp"
#include "io/formats/list.hpp"

namespace conclave::formats {

std::shared_ptr<const WeightFormat> gpt_oss_mxfp4(const ModelConfig& settings) {
  if (settings.text("quant_method", "") != "mxfp4") return nullptr;
  return make_coded_format({.name = "mxfp4",
                            .key = QuantKey::mxfp4,
                            .codes = {"_blocks"},
                            .unit = CodeUnit::block16,
                            .code_dtypes = {DType::u8},
                            .scale = {"_scales"}});
}

}  // namespace conclave::formats
