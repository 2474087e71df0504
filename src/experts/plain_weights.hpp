// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: expert weights as a caller has them. Out: a contiguous copy in the same dtype and row order, biases in f32: the
// packed form of parts that compute on plain matrices.
#pragma once

#include <string>

#include "conclave/config.hpp"
#include "conclave/weights.hpp"

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

  ConstTensorView w13() const noexcept { return w13_; }          ///< [E_local, 2I | I, H]
  ConstTensorView w2() const noexcept { return w2_; }            ///< [E_local, H, I]
  const Tensor& w13_bias() const noexcept { return w13_bias_; }  ///< f32 [E_local, 2I | I], or empty.
  const Tensor& w2_bias() const noexcept { return w2_bias_; }    ///< f32 [E_local, H], or empty where it is not added.

 private:
  std::string layout_;
  Tensor w13_, w2_, w13_bias_, w2_bias_;
};

}  // namespace conclave::experts
