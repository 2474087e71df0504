// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a problem and expert weights. Out: an Error for the first thing about them that does not fit.
#include "experts/weights_check.hpp"

#include <array>
#include <string>

#include "base/error.hpp"
#include "quant/weights_check.hpp"

namespace conclave::experts {
namespace {

using OptionalView = std::optional<ConstTensorView>;

std::string text_of(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

/// -1 in `expected` stands for "any".
void check_shape(std::string_view what, const ConstTensorView& view, std::initializer_list<std::int64_t> expected) {
  const std::span<const std::int64_t> shape(expected.begin(), expected.size());
  bool same = view.rank == static_cast<int>(shape.size());
  for (int d = 0; same && d < view.rank; ++d) same = view.size(d) == shape[static_cast<std::size_t>(d)];
  require(same, "{}: given {}, expected shape {}", what, to_string(view), text_of(shape));
}

void check_memory(std::string_view what, const ConstTensorView& view) {
  require(view.device.type == DeviceType::cpu, "{}: given on {}, expected cpu", what, to_string(view.device));
  const int last = view.rank - 1;
  require(view.size(last) <= 1 || view.stride(last) == 1, "{}: given column stride {}, expected 1", what,
          view.stride(last));
  require(view.data != nullptr || view.numel() == 0, "{}: given null data, expected {} bytes", what, view.bytes());
}

void check_matrix(std::string_view what, const ConstTensorView& view, DType dtype,
                  std::initializer_list<std::int64_t> expected) {
  check_shape(what, view, expected);
  require(view.dtype == dtype, "{}: given dtype {}, expected {} (weight_dtype)", what, name_of(view.dtype),
          name_of(dtype));
  check_memory(what, view);
}

void check_bias(std::string_view what, const OptionalView& view, bool wanted, std::int64_t num_local_experts,
                std::int64_t rows) {
  if (!wanted) {
    require(!view.has_value(), "{}: given {}, expected none (has_{} is false)", what,
            view ? to_string(*view) : std::string(), what);
    return;
  }
  require(view.has_value(), "{}: missing, expected shape [{}, {}] (has_{} is true)", what, num_local_experts, rows,
          what);
  check_shape(what, *view, {num_local_experts, rows});
  require(is_compute_dtype(view->dtype), "{}: given dtype {}, expected f32, bf16 or f16", what, name_of(view->dtype));
  check_memory(what, *view);
}

void check_no_scales(const ExpertWeights& w) {
  const std::array<std::pair<std::string_view, const OptionalView*>, 6> scales{{
      {"w13_scale", &w.w13_scale},
      {"w2_scale", &w.w2_scale},
      {"w13_global_scale", &w.w13_global_scale},
      {"w2_global_scale", &w.w2_global_scale},
      {"w13_zero_point", &w.w13_zero_point},
      {"w2_zero_point", &w.w2_zero_point},
  }};
  for (const auto& [name, view] : scales)
    require(!view->has_value(), "{}: given {}, expected none (quant.weights is none)", name,
            view->has_value() ? to_string(**view) : std::string());
}

}  // namespace

void check_weights(const Problem& problem, const ExpertWeights& weights) {
  const MoeConfig& moe = problem.moe;
  const std::int64_t num_local = weights.num_local_experts();
  const std::int64_t rows = w13_rows(is_gated(moe.activation), moe.intermediate_size);
  const std::int64_t hidden = moe.expert_width();
  require(num_local <= moe.num_weight_experts(), "w13: given {} local experts, expected at most {} in all", num_local,
          moe.num_weight_experts());
  if (problem.quant.weights == QuantKey::none) {
    check_matrix("w13", weights.w13, moe.weight_dtype, {num_local, rows, hidden});
    check_matrix("w2", weights.w2, moe.weight_dtype, {num_local, hidden, moe.intermediate_size});
    check_no_scales(weights);
  } else {
    quant::check_quantised_weights(moe, problem.quant.weights, weights);
  }
  quant::check_activation_scales(problem.quant.activations, weights);
  check_bias("w13_bias", weights.w13_bias, moe.has_w13_bias, num_local, rows);
  check_bias("w2_bias", weights.w2_bias, moe.has_w2_bias, num_local, hidden);
}

void fail_foreign_layout(const std::string& layout, const std::string& part) {
  fail(ErrorKind::invalid_argument, "{}: given weights packed for {}, expected weights packed for {}", part, layout,
       part);
}

}  // namespace conclave::experts
