// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// quant_method "modelopt": FP8 with one factor a projection, or NVFP4 with a factor for 16 elements in e4m3 and one
// above in f32. Both decode.
#include "io/formats/coded_format.hpp"
#include "io/formats/list.hpp"

namespace conclave::formats {

std::shared_ptr<const WeightFormat> modelopt(const ModelConfig& settings) {
  if (!settings.text("quant_method", "").starts_with("modelopt")) return nullptr;
  const std::string algorithm = settings.text("quant_algo", "");
  CodedLayout layout{.name = "modelopt " + algorithm,
                     .codes = {".weight"},
                     .scale = {".weight_scale"},
                     .unused = {".input_scale", ".k_scale", ".v_scale"}};
  if (algorithm == "FP8") {
    layout.key = QuantKey::fp8_tensor;
    layout.code_dtypes = {DType::fp8_e4m3};
  } else if (algorithm == "NVFP4") {
    settings.expect("group_size", {16});
    layout.key = QuantKey::nvfp4;
    layout.code_dtypes = {DType::u8};
    layout.global_scale = ".weight_scale_2";
  } else {
    settings.refuse("quant_algo", "FP8 or NVFP4");
  }
  return make_coded_format(std::move(layout));
}

}  // namespace conclave::formats
