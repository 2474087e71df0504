// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Shapes first, then values.
#include "quant/weights_check.hpp"

#include <vector>

#include "base/error.hpp"
#include "base/tensor_format.hpp"
#include "quant/expert_matrices.hpp"
#include "quant/scales.hpp"

namespace conclave::quant {
namespace {

using Shape = std::vector<std::int64_t>;
using OptionalView = std::optional<ConstTensorView>;

Shape shape_of(const ConstTensorView& v) {
  return {v.shape.begin(), v.shape.begin() + v.rank};
}
Shape without_trailing_ones(Shape shape) {
  while (!shape.empty() && shape.back() == 1) shape.pop_back();
  return shape;
}

void check_memory(std::string_view what, const ConstTensorView& view) {
  require(view.device.type == DeviceType::cpu, "{}: given on {}, expected cpu", what, view.device);
  require(view.data != nullptr || view.numel() == 0, "{}: given null data, expected {} bytes", what, view.bytes());
}

/// Where the matrix belongs: which of the two, and how its tensors are called.
struct Names {
  const char *elements, *scale, *global_scale, *zero_point;
};
constexpr Names kW13{"w13", "w13_scale", "w13_global_scale", "w13_zero_point"};
constexpr Names kW2{"w2", "w2_scale", "w2_global_scale", "w2_zero_point"};

void check_elements(const char* what, QuantKey key, const ConstTensorView& view, std::int64_t experts,
                    std::int64_t rows, std::int64_t cols, const MatrixShape& shape) {
  const bool is_native_fp4 = view.dtype == DType::fp4_e2m1 && scheme_of(key).element == DType::fp4_e2m1;
  const Shape expected{experts, rows, is_native_fp4 ? cols : shape.cols};
  const bool is_bytes = view.dtype == DType::u8 || view.dtype == shape.dtype || view.dtype == scheme_of(key).element;
  require(is_bytes && shape_of(view) == expected, "{}: given {}, expected {} [{}] ({})", what, view,
          name_of(shape.dtype), fmt::join(expected, ", "), name_of(key));
  require(!is_native_fp4 || view.is_contiguous(), "{}: given {}, expected contiguous packed elements", what, view);
  require(view.size(2) <= 1 || view.stride(2) == 1, "{}: given column stride {}, expected 1", what, view.stride(2));
  check_memory(what, view);
}

/// `wanted` has the experts in front. `or_two`: [E, 2] will do as well.
void check_scale_shape(const char* what, QuantKey key, const OptionalView& view, bool needed, DType dtype,
                       const Shape& wanted, bool or_two) {
  if (!needed) {
    require(!view, "{}: given {}, expected none ({})", what, view.value_or(ConstTensorView()), name_of(key));
    return;
  }
  require(view.has_value(), "{}: missing, expected {} [{}] ({})", what, name_of(dtype), fmt::join(wanted, ", "),
          name_of(key));
  const Shape given = without_trailing_ones(shape_of(*view));
  const bool fits = given == without_trailing_ones(wanted) || (or_two && given == Shape{wanted[0], 2});
  const bool same_type = view->dtype == dtype || (view->dtype == DType::u8 && bits_of(dtype) == 8);
  require(fits && same_type, "{}: given {}, expected {} [{}]{} ({})", what, *view, name_of(dtype),
          fmt::join(wanted, ", "), or_two ? fmt::format(" or [{}, 2]", wanted[0]) : "", name_of(key));
  check_memory(what, *view);
}

/// Calls f(index in row-major order, element offset) for each element.
template <class F>
void for_each_element(const ConstTensorView& v, F f) {
  const std::int64_t count = v.numel();
  for (std::int64_t n = 0; n < count; ++n) {
    std::int64_t rest = n, offset = 0;
    for (int d = v.rank - 1; d >= 0; --d) {
      offset += rest % v.size(d) * v.stride(d);
      rest /= v.size(d);
    }
    f(n, offset);
  }
}

/// The first index is an expert, which has its own name where there are several ranks.
std::string index_text(const ConstTensorView& v, std::int64_t flat, const OptionalView& expert_ids) {
  Shape index(static_cast<std::size_t>(v.rank));
  for (int d = v.rank - 1; d >= 0; --d) {
    index[static_cast<std::size_t>(d)] = flat % v.size(d);
    flat /= v.size(d);
  }
  if (expert_ids && v.rank > 0 && index[0] < expert_ids->size(0))
    index[0] = expert_ids->as<std::int32_t>()[index[0] * expert_ids->stride(0)];
  return fmt::format("[{}]", fmt::join(index, ", "));
}

float value_at(const ConstTensorView& v, DType dtype, std::int64_t offset) {
  if (dtype == DType::f32) return v.as<float>()[offset];
  const std::uint8_t code = v.as<std::uint8_t>()[offset];
  return dtype == DType::e8m0 ? e8m0_to_f32(code) : e4m3_to_f32(code);
}

/// Zero is legal where `zero` says so: the scale of a block of zeros that another tool wrote.
void check_scale_values(const char* what, const OptionalView& view, DType dtype, bool zero,
                        const OptionalView& expert_ids) {
  if (!view) return;
  for_each_element(*view, [&](std::int64_t flat, std::int64_t offset) {
    const float value = value_at(*view, dtype, offset);
    if (!(value >= 0.0f && std::isfinite(value) && (zero || value > 0.0f))) [[unlikely]]
      fail(ErrorKind::invalid_argument, "{}{}: given {}, expected a finite scale {}", what,
           index_text(*view, flat, expert_ids), value, zero ? "of 0 or more" : "above 0");
  });
}

void check_zero_points(const char* what, const OptionalView& view, const OptionalView& expert_ids) {
  if (!view) return;
  for_each_element(*view, [&](std::int64_t flat, std::int64_t offset) {
    const int value = view->as<std::uint8_t>()[offset];
    if (value > 15) [[unlikely]]
      fail(ErrorKind::invalid_argument, "{}{}: given {}, expected 0 to 15", what, index_text(*view, flat, expert_ids),
           value);
  });
}

void check_tensors(const Names& names, QuantKey key, const ExpertTensors& t, std::int64_t experts, std::int64_t rows,
                   std::int64_t cols, bool gated, const OptionalView& expert_ids) {
  const Format f = format_of(key, QuantRole::weights);
  const QuantShapes shapes = shapes_of(key, rows, cols);
  check_elements(names.elements, key, t.elements, experts, rows, cols, shapes.elements);
  const Shape scale{experts, shapes.scale.rows, shapes.scale.cols};
  check_scale_shape(names.scale, key, t.scale, true, f.scale_dtype, scale, gated && f.scale_is_tensor_wide());
  check_scale_shape(names.global_scale, key, t.global_scale, f.global_group.has_value(), DType::f32, {experts}, gated);
  check_scale_shape(names.zero_point, key, t.zero_point, f.zero_points, DType::u8, scale, false);
  check_scale_values(names.scale, t.scale, f.scale_dtype, true, expert_ids);
  check_scale_values(names.global_scale, t.global_scale, DType::f32, true, expert_ids);
  check_zero_points(names.zero_point, t.zero_point, expert_ids);
}

void check_activation_scale(const char* what, QuantKey key, const OptionalView& view, std::int64_t experts,
                            const OptionalView& expert_ids) {
  if (!has_static_scale(key)) {
    require(!view, "{}: given {}, expected none (quant.activations is {})", what, view.value_or(ConstTensorView()),
            name_of(key));
    return;
  }
  require(view.has_value(),
          "{}: missing, expected one f32 or one for each of {} local experts (quant.activations is {})", what, experts,
          name_of(key));
  const Shape given = without_trailing_ones(shape_of(*view));
  require(view->dtype == DType::f32 && (given.empty() || given == without_trailing_ones({experts})),
          "{}: given {}, expected one f32 or one for each of {} local experts", what, *view, experts);
  check_memory(what, *view);
  check_scale_values(what, view, DType::f32, false, expert_ids);
}

}  // namespace

void check_quantised_weights(const MoeConfig& moe, QuantKey key, const ExpertWeights& w) {
  const Support support = supports_key(key, QuantRole::weights);
  require(static_cast<bool>(support), "{}", support.reason());
  const bool gated = is_gated(moe.activation);
  const std::int64_t experts = w.num_local_experts();
  const std::int64_t width = moe.expert_width();
  check_tensors(kW13, key, w13_tensors(w), experts, w13_rows(gated, moe.intermediate_size), width, gated, w.expert_ids);
  check_tensors(kW2, key, w2_tensors(w), experts, width, moe.intermediate_size, false, w.expert_ids);
}

void check_activation_scales(QuantKey activations, const ExpertWeights& w) {
  check_activation_scale("a1_scale", activations, w.a1_scale, w.num_local_experts(), w.expert_ids);
  check_activation_scale("a2_scale", activations, w.a2_scale, w.num_local_experts(), w.expert_ids);
}

}  // namespace conclave::quant
