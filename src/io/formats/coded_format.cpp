// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// A row of codes is copied, with bits flipped where the tool counts from another zero.
#include "io/formats/coded_format.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "io/formats/numbers.hpp"

namespace conclave {
namespace {

/// Where a spec is in the list that tensors() returns.
enum Spec : std::size_t { kCodes, kScale, kFirstOptional };

std::vector<DType> dtypes_of_scale(DType means) {
  if (means == DType::f32) return {DType::f32, DType::bf16, DType::f16, DType::e8m0};
  return {means, DType::u8};
}

class CodedFormat final : public WeightFormat {
 public:
  explicit CodedFormat(CodedLayout layout) : l_(std::move(layout)) {}

  std::string name() const override { return l_.name; }
  std::string_view code_suffix() const override { return l_.codes[0]; }
  QuantKey key() const override { return l_.key; }

  std::vector<TensorSpec> tensors(std::int64_t rows, std::int64_t cols) const override {
    const QuantShapes shapes = shapes_of(l_.key, rows, cols);
    std::vector<TensorSpec> specs;
    specs.push_back({l_.codes, code_shape(rows, shapes.elements.cols), l_.code_dtypes});
    specs.push_back({l_.scale, {shapes.scale.rows, shapes.scale.cols}, dtypes_of_scale(shapes.scale.dtype)});
    if (!l_.global_scale.empty()) specs.push_back({{l_.global_scale}, {}, {DType::f32}});
    if (!l_.zero_point.empty()) specs.push_back({{l_.zero_point}, {(rows + 7) / 8, shapes.scale.cols}, {DType::i32}});
    if (!l_.shape.empty()) specs.push_back({{l_.shape}, {2}, {DType::i64, DType::i32}});
    for (std::string_view suffix : l_.unused) specs.push_back({{suffix}, {}, {}, true, true});
    return specs;
  }

  void read(const StoredProjection& from, const QuantMatrix& out) const override {
    std::size_t next = kFirstOptional;
    if (!l_.global_scale.empty()) read_global(from, next++, out.global_scale);
    if (!l_.zero_point.empty()) read_zero_points(from, next++, out.zero_point);
    if (!l_.shape.empty()) check_shape(from, next++);
    read_codes(from.tensors[kCodes], out.elements);
    const DType means = shapes_of(l_.key, from.rows, from.cols).scale.dtype;
    const DType stored = from.tensors[kScale].view.dtype;
    read_scales(from, kScale, means == DType::f32 ? stored : means, out.scale);
  }

  std::vector<WrittenTensor> write(const ConstQuantMatrix& from, DType scale_dtype) const override {
    std::vector<WrittenTensor> out;
    const auto add = [&](std::string_view suffix, Tensor tensor) { out.push_back({std::string(suffix), tensor}); };
    add(l_.codes[0], written_codes(from));
    add(l_.scale[0], written_scales(from, scale_dtype));
    if (!l_.global_scale.empty()) {
      const float scale = *from.global_scale.as<float>();
      const Tensor stored(DType::f32, {1});
      *stored.as<float>() = l_.global_encodes ? 1.0F / scale : scale;
      add(l_.global_scale, stored);
    }
    if (!l_.zero_point.empty()) add(l_.zero_point, written_zero_points(from));
    if (!l_.shape.empty()) {
      const Tensor shape(DType::i64, {2});
      shape.as<std::int64_t>()[0] = from.rows;
      shape.as<std::int64_t>()[1] = from.cols;
      add(l_.shape, shape);
    }
    return out;
  }

 private:
  Tensor written_codes(const ConstQuantMatrix& from) const {
    const ConstTensorView& codes = from.elements;
    const std::vector<std::int64_t> shape = code_shape(from.rows, codes.size(1));
    const Tensor out(l_.code_dtypes[0], std::span<const std::int64_t>(shape));
    const std::int64_t row_bytes = from.rows > 0 ? out.view().bytes() / from.rows : 0;
    for (std::int64_t r = 0; r < from.rows; ++r) {
      const auto* row = codes.as<std::uint8_t>() + r * codes.stride(0);
      std::transform(row, row + codes.size(1), out.as<std::uint8_t>() + r * row_bytes,
                     [&](std::uint8_t code) { return static_cast<std::uint8_t>(code ^ l_.flip); });
    }
    return out;
  }

  Tensor written_scales(const ConstQuantMatrix& from, DType scale_dtype) const {
    const ConstTensorView& s = from.scale;
    const DType means = shapes_of(l_.key, from.rows, from.cols).scale.dtype;
    // Powers of two are bytes to the tools.
    const DType stored = means == DType::f32 ? scale_dtype : means == DType::e8m0 ? DType::u8 : means;
    const std::int64_t whole[] = {1}, grid[] = {s.size(0), s.size(1)};
    const Tensor out(stored, s.numel() == 1 && from.rows > 1 ? std::span<const std::int64_t>(whole) : grid);
    for (std::int64_t r = 0; r < s.size(0); ++r)
      for (std::int64_t c = 0; c < s.size(1); ++c) {
        const std::int64_t at = r * s.stride(0) + c * s.stride(1);
        const std::int64_t to = r * s.size(1) + c;
        if (means == DType::f32)
          store_number(s.as<float>()[at], out, to);
        else
          out.as<std::uint8_t>()[to] = s.as<std::uint8_t>()[at];
      }
    return out;
  }

  static Tensor written_zero_points(const ConstQuantMatrix& from) {
    const ConstTensorView& z = from.zero_point;
    const Tensor out(DType::i32, {(z.size(0) + 7) / 8, z.size(1)});
    for (std::int64_t r = 0; r < z.size(0); ++r)
      for (std::int64_t g = 0; g < z.size(1); ++g)
        out.as<std::uint32_t>()[r / 8 * z.size(1) + g] |=
            static_cast<std::uint32_t>(z.as<std::uint8_t>()[r * z.stride(0) + g * z.stride(1)]) << (r % 8 * 4);
    return out;
  }

  std::vector<std::int64_t> code_shape(std::int64_t rows, std::int64_t row_bytes) const {
    if (l_.unit == CodeUnit::word) return {rows, (row_bytes + 3) / 4};
    if (l_.unit == CodeUnit::block16) return {rows, row_bytes / 16, 16};
    return {rows, row_bytes};
  }

  void read_codes(const StoredTensor& stored, const TensorView& out) const {
    const auto* bytes = stored.view.as<std::uint8_t>();
    const std::int64_t stored_row = out.size(0) > 0 ? stored.view.bytes() / out.size(0) : 0;
    for (std::int64_t r = 0; r < out.size(0); ++r) {
      const auto* from = bytes + r * stored_row;
      std::transform(from, from + out.size(1), out.as<std::uint8_t>() + r * out.stride(0),
                     [&](std::uint8_t code) { return static_cast<std::uint8_t>(code ^ l_.flip); });
    }
  }

  void read_global(const StoredProjection& from, std::size_t spec, const TensorView& out) const {
    const float stored = checked_scale(from, spec, DType::f32, 0);
    if (l_.global_encodes && stored == 0)
      fail(ErrorKind::bad_file, "{}: given 0, expected a divisor", from.where(spec));
    *out.as<float>() = l_.global_encodes ? 1.0F / stored : stored;
  }

  static void read_zero_points(const StoredProjection& from, std::size_t spec, const TensorView& out) {
    const auto* words = from.tensors[spec].view.as<std::uint32_t>();
    for (std::int64_t r = 0; r < out.size(0); ++r)
      for (std::int64_t g = 0; g < out.size(1); ++g)
        out.as<std::uint8_t>()[r * out.stride(0) + g * out.stride(1)] =
            static_cast<std::uint8_t>(words[r / 8 * out.size(1) + g] >> (r % 8 * 4) & 15U);
  }

  static void check_shape(const StoredProjection& from, std::size_t spec) {
    const ConstTensorView& view = from.tensors[spec].view;
    const auto extent = [&](int i) {
      return view.dtype == DType::i64 ? view.as<std::int64_t>()[i] : view.as<std::int32_t>()[i];
    };
    if (extent(0) != from.rows || extent(1) != from.cols)
      fail(ErrorKind::bad_file, "{}: given [{}, {}], expected [{}, {}]", from.where(spec), extent(0), extent(1),
           from.rows, from.cols);
  }

  CodedLayout l_;
};

}  // namespace

std::shared_ptr<const WeightFormat> make_coded_format(CodedLayout layout) {
  return std::make_shared<CodedFormat>(std::move(layout));
}

}  // namespace conclave
