// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: expert weights as a caller has them. Out: a contiguous copy in the same dtype and row order, or in f32 where they
// were quantised, with biases in f32: the packed form of parts that compute on plain matrices. With them goes what the
// part needs to quantise its activations.
#pragma once

#include <string>

#include "conclave/config.hpp"
#include "conclave/weights.hpp"
#include "quant/activations.hpp"

namespace conclave::experts {

class PlainWeights final : public PackedWeights {
 public:
  /// Checks the weights, then copies them. `layout` is the name of the part that packs.
  PlainWeights(std::string layout, const Problem& problem, const ExpertWeights& weights);

  /// Overwrites the copy; addresses stay. Throws Error if the weights do not fit or their number changed.
  void assign(const Problem& problem, const ExpertWeights& weights);

  const std::string& layout() const noexcept override { return layout_; }
  std::int64_t bytes() const noexcept override;
  std::int64_t num_local_experts() const noexcept override { return w13_.view().size(0); }
  std::vector<TensorView> expert_tensors() const override;

  ConstTensorView w13() const noexcept { return w13_; }          ///< [E_local, 2I | I, H]
  ConstTensorView w2() const noexcept { return w2_; }            ///< [E_local, H, I]
  const Tensor& w13_bias() const noexcept { return w13_bias_; }  ///< f32 [E_local, 2I | I], or empty.
  const Tensor& w2_bias() const noexcept { return w2_bias_; }    ///< f32 [E_local, H], or empty where it is not added.

  const quant::ActivationQuantiser& activations() const noexcept { return activations_; }
  /// Static scales of the input and of the value between the products; 1 where the activations have none.
  float a1_scale(std::int64_t expert) const noexcept { return a1_scale_ ? a1_scale_.as<float>()[expert] : 1.0f; }
  float a2_scale(std::int64_t expert) const noexcept { return a2_scale_ ? a2_scale_.as<float>()[expert] : 1.0f; }

 private:
  std::string layout_;
  Tensor w13_, w2_, w13_bias_, w2_bias_;
  Tensor a1_scale_, a2_scale_;  ///< f32 [E_local], or empty.
  quant::ActivationQuantiser activations_;
};

}  // namespace conclave::experts
