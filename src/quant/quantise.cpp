// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a matrix of numbers. Out: its codes and scales, a band of rows that share their scales at a time: once over the
// band for the extremes of each group, once more for the codes.
#include <vector>

#include "base/error.hpp"
#include "base/tensor_format.hpp"
#include "cpu/float_convert.hpp"
#include "quant/matrix.hpp"
#include "quant/scales.hpp"

namespace conclave {
namespace quant {
namespace {

ConstQuantMatrix as_const(const QuantMatrix& m) {
  return {m.key, m.role, m.rows, m.cols, m.elements, m.scale, m.global_scale, m.zero_point};
}

class Encoder {
 public:
  Encoder(const ConstTensorView& x, const QuantMatrix& out, GivenScales given)
      : x_(x),
        out_(out),
        given_(given),
        format_(format_of(out.key, out.role)),
        row_(static_cast<std::size_t>(out.cols)),
        scales_(static_cast<std::size_t>(format_.col_groups(out.cols))),
        stats_(scales_.size()) {}

  void run() {
    if (format_.global_group && format_.global_group->rows < 0) find_global(0, out_.rows, 0);
    const std::int64_t band = format_.group.rows < 0 ? std::max<std::int64_t>(out_.rows, 1) : format_.group.rows;
    // A tensor without rows still has its one scale.
    const std::int64_t bands = format_.row_groups(out_.rows);
    for (std::int64_t b = 0; b < bands; ++b) encode_band(b, b * band, std::min(out_.rows, (b + 1) * band));
  }

 private:
  const float* load(std::int64_t r) {
    cpu::load_row_f32(x_.at(r), row_.data());
    return row_.data();
  }

  void find_global(std::int64_t begin, std::int64_t end, std::int64_t index) {
    if (!given_.global_scale) {
      GroupStats stats;
      for (std::int64_t r = begin; r < end; ++r) stats.add(load(r), out_.cols);
      set_scale(out_.global_scale, DType::f32, index, 0, nvfp4_global_scale(stats));
    }
    global_ = scale_at(out_.global_scale, DType::f32, index, 0);
  }

  template <class F>
  void for_each_group(F&& f) const {
    const std::int64_t width = format_.group_cols(out_.cols);
    for (std::size_t g = 0; g < scales_.size(); ++g) {
      const std::int64_t first = static_cast<std::int64_t>(g) * width;
      f(g, first, std::min(width, out_.cols - first));
    }
  }

  void encode_band(std::int64_t band, std::int64_t begin, std::int64_t end) {
    if (format_.global_group && format_.global_group->rows == 1) find_global(begin, end, begin);
    if (given_.scale) {
      read_scales(band);
    } else {
      compute_scales(band, begin, end);
    }
    for (std::int64_t r = begin; r < end; ++r) {
      const float* x = load(r);
      auto* codes = out_.elements.as<std::uint8_t>() + r * out_.elements.stride(0);
      for_each_group([&](std::size_t g, std::int64_t first, std::int64_t count) {
        format_.family->encode(x + first, first, count, scales_[g], codes);
      });
    }
  }

  void compute_scales(std::int64_t band, std::int64_t begin, std::int64_t end) {
    stats_.assign(stats_.size(), {});
    for (std::int64_t r = begin; r < end; ++r) {
      const float* x = load(r);
      for_each_group([&](std::size_t g, std::int64_t first, std::int64_t count) { stats_[g].add(x + first, count); });
    }
    for (std::size_t g = 0; g < scales_.size(); ++g) {
      scales_[g] = format_.family->scale_of(stats_[g], global_);
      set_scale(out_.scale, format_.scale_dtype, band, static_cast<std::int64_t>(g), scales_[g].value);
      if (format_.zero_points) *zero_point(band, g) = scales_[g].zero_point;
      scales_[g].value *= global_;
    }
  }

  void read_scales(std::int64_t band) {
    for (std::size_t g = 0; g < scales_.size(); ++g) {
      scales_[g] = {scale_at(out_.scale, format_.scale_dtype, band, static_cast<std::int64_t>(g)) * global_, 8};
      if (format_.zero_points) scales_[g].zero_point = *zero_point(band, g);
    }
  }

  std::uint8_t* zero_point(std::int64_t band, std::size_t g) const {
    const TensorView& z = out_.zero_point;
    return z.as<std::uint8_t>() + band * z.stride(0) + static_cast<std::int64_t>(g) * z.stride(1);
  }

  const ConstTensorView& x_;
  const QuantMatrix& out_;
  GivenScales given_;
  Format format_;
  float global_ = 1.0f;
  std::vector<float> row_;
  std::vector<GroupScale> scales_;
  std::vector<GroupStats> stats_;
};

}  // namespace
}  // namespace quant

void quantise(const ConstTensorView& x, const QuantMatrix& out, GivenScales given) {
  quant::check_matrix(quant::as_const(out));
  require(x.rank == 2 && x.size(0) == out.rows && x.size(1) == out.cols && is_compute_dtype(x.dtype),
          "matrix to quantise: given {}, expected f32, bf16 or f16 of [{}, {}]", x, out.rows, out.cols);
  quant::Encoder(x, out, given).run();
}

}  // namespace conclave
