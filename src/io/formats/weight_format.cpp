// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The list of formats, and decoding through the codec where a format has a key.
#include "io/formats/weight_format.hpp"

#include "base/error.hpp"
#include "io/formats/list.hpp"
#include "io/gather.hpp"
#include "io/json_text.hpp"

namespace conclave {
namespace {

/// A new tool is one file beside this one and one line here.
constexpr OpenFormat kFormats[] = {
    formats::deepseek_fp8, formats::gpt_oss_mxfp4, formats::compressed_tensors,
    formats::modelopt,     formats::gptq,          formats::awq,
};
constexpr std::string_view kMethods = "fp8, mxfp4, compressed-tensors, modelopt, gptq or awq";

class PlainFormat final : public WeightFormat {
 public:
  explicit PlainFormat(std::string_view suffix) : suffix_(suffix.empty() ? "" : ".weight") {}
  std::string name() const override { return "plain"; }
  std::string_view code_suffix() const override { return suffix_; }
  QuantKey key() const override { return QuantKey::none; }
  std::string reason() const override { return "some projections are stored as floats"; }
  std::vector<TensorSpec> tensors(std::int64_t rows, std::int64_t cols) const override {
    return {{{suffix_}, {rows, cols}, {DType::f32, DType::bf16, DType::f16}}};
  }
  void read(const StoredProjection& from, const QuantMatrix& /*out*/) const override {
    fail(ErrorKind::bad_file, "{}: given floats, expected codes", from.where(0));
  }
  void decode(const StoredProjection& from, const TensorView& out) const override {
    for (std::int64_t r = 0; r < from.rows; ++r)
      for (std::int64_t c = 0; c < from.cols; ++c)
        out.as<float>()[r * out.stride(0) + c * out.stride(1)] =
            widened_element(from.tensors[0].view, r * from.cols + c);
  }

 private:
  std::string_view suffix_;
};

}  // namespace

std::shared_ptr<const WeightFormat> plain_weight_format(std::string_view suffix) {
  return std::make_shared<PlainFormat>(suffix);
}

std::string StoredProjection::where(std::size_t spec) const {
  return fmt::format("{}: tensor {}", tensors[spec].file->path(), in_quotes(names[spec]));
}

void WeightFormat::decode(const StoredProjection& from, const TensorView& out) const {
  const QuantShapes shapes = shapes_of(key(), from.rows, from.cols);
  const auto tensor = [](const MatrixShape& s) { return Tensor(s.dtype, {s.rows, s.cols}); };
  const Tensor elements = tensor(shapes.elements), scale = tensor(shapes.scale);
  Tensor global_scale, zero_point;
  QuantMatrix matrix{key(), QuantRole::weights, from.rows, from.cols, elements, scale, {}, {}};
  if (shapes.global_scale) matrix.global_scale = global_scale = tensor(*shapes.global_scale);
  if (shapes.zero_point) matrix.zero_point = zero_point = tensor(*shapes.zero_point);
  read(from, matrix);
  dequantise({matrix.key, matrix.role, matrix.rows, matrix.cols, matrix.elements, matrix.scale, matrix.global_scale,
              matrix.zero_point},
             out);
}

std::vector<WrittenTensor> WeightFormat::write(const ConstQuantMatrix& /*from*/, DType /*scale_dtype*/) const {
  fail(ErrorKind::unsupported, "{}: this format is read and not written", name());
}

std::shared_ptr<const WeightFormat> open_weight_format(const ModelConfig& settings) {
  for (const OpenFormat open : kFormats)
    if (auto format = open(settings)) return format;
  settings.refuse("quant_method", kMethods);
}

}  // namespace conclave
