// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What every part on plain weights has in common: a name, the problem, the activation, and packing. A part adds its
// format, its buffers and apply().
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "base/tensor_format.hpp"
#include "conclave/experts.hpp"
#include "conclave/quantise.hpp"
#include "experts/activation.hpp"
#include "experts/plain_weights.hpp"
#include "experts/weights_check.hpp"
#include "quant/activations.hpp"

namespace conclave::experts {

/// Stage is ModularExperts or MonolithicExperts.
template <class Stage>
class PlainExperts : public Stage {
 public:
  PlainExperts(std::string name, const Problem& problem)
      : name_(std::move(name)),
        problem_(problem),
        activation_(make_activation(problem.moe.activation, problem.moe.activation_params)) {}

  const std::string& name() const noexcept final { return name_; }
  bool supports_expert_map() const noexcept final { return true; }
  /// Quantised activations are floats that went through their codes. Codes that a row can bring along are taken as they
  /// come; the other formats are the part's own to apply, and so are all where prepare sees logits.
  bool expects_unquantized_inputs() const noexcept final {
    const QuantKey key = problem_.quant.activations;
    return key != QuantKey::none && (this->is_monolithic() || !quant::codes_by_row(key));
  }

  std::unique_ptr<PackedWeights> pack(const ExpertWeights& weights, Stream /*stream*/) const final {
    return std::make_unique<PlainWeights>(name_, problem_, weights);
  }
  void update(PackedWeights& packed, const ExpertWeights& weights, Stream /*stream*/) const final {
    packed_as<PlainWeights>(packed, name_).assign(problem_, weights);
  }

 protected:
  const PlainWeights& plain(const PackedWeights& packed) const { return packed_as<const PlainWeights>(packed, name_); }
  const MoeConfig& moe() const noexcept { return problem_.moe; }
  const Problem& problem() const noexcept { return problem_; }
  const ActivationFn& activation() const noexcept { return activation_; }
  std::int64_t hidden_size() const noexcept { return problem_.moe.expert_width(); }
  std::int64_t w13_rows() const noexcept {
    return conclave::w13_rows(activation_.gated, problem_.moe.intermediate_size);
  }

  /// True if the rows came as codes with these scales, whose shape then is checked.
  bool check_codes(const ConstTensorView& x, const std::optional<ConstTensorView>& scales, int rank) const {
    if (!scales) return false;
    const QuantKey key = problem_.quant.activations;
    require(quant::codes_by_row(key), "scales: given {}, expected none (quant.activations is {})", *scales,
            name_of(key));
    const QuantShapes shapes = shapes_of(key, 1, hidden_size(), QuantRole::activations);
    require(x.rank == rank && x.size(-1) == shapes.elements.cols && x.dtype == shapes.elements.dtype &&
                (x.size(-1) <= 1 || x.stride(-1) == 1),
            "hidden_states: given {}, expected codes {} of rank {} with {} columns ({})", x,
            name_of(shapes.elements.dtype), rank, shapes.elements.cols, name_of(key));
    bool same = scales->rank == rank && scales->dtype == shapes.scale.dtype && scales->size(-1) == shapes.scale.cols;
    for (int d = 0; same && d + 1 < rank; ++d) same = scales->size(d) == x.size(d);
    require(same, "scales: given {}, expected {} with the rows of hidden_states {} and {} columns ({})", *scales,
            name_of(shapes.scale.dtype), x, shapes.scale.cols, name_of(key));
    return true;
  }

  /// Activations as the part's buffers and arithmetic expect them; columns contiguous, row stride free.
  void check_hidden_states(const ConstTensorView& hidden_states, int rank) const {
    require(hidden_states.rank == rank && hidden_states.size(-1) == hidden_size() &&
                hidden_states.dtype == problem_.moe.dtype,
            "hidden_states: given {}, expected {} of rank {} with {} columns", hidden_states,
            name_of(problem_.moe.dtype), rank, hidden_size());
    require(hidden_size() <= 1 || hidden_states.stride(-1) == 1, "hidden_states: given {}, expected contiguous columns",
            hidden_states);
  }

 private:
  std::string name_;
  Problem problem_;
  ActivationFn activation_;
};

}  // namespace conclave::experts
