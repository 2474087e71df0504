// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Expert weights as a caller has them, and as a kernel packed them. The packed form is opaque and carries the name of
// the kernel that made it: another kernel refuses it instead of reading a layout it does not know.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "conclave/tensor.hpp"

namespace conclave {

/// One rank's experts. Views may be strided in the expert and row dimensions (gate and up of a packed tensor);
/// columns are contiguous.
struct ExpertWeights {
  ConstTensorView w13;                      ///< [E_local, 2I | I, H]; row order is MoeConfig::w13_layout.
  ConstTensorView w2;                       ///< [E_local, H, I]
  std::optional<ConstTensorView> w13_bias;  ///< [E_local, 2I | I], rows ordered as w13.
  std::optional<ConstTensorView> w2_bias;   ///< [E_local, H]
  /// Quantised formats: the shapes are those of QuantScheme::scale over the matrix.
  std::optional<ConstTensorView> w13_scale, w2_scale;
  std::optional<ConstTensorView> w13_global_scale, w2_global_scale;
  std::optional<ConstTensorView> w13_zero_point, w2_zero_point;
  std::optional<ConstTensorView> a1_scale, a2_scale;
  /// i32 [E_local]: global ids, by which messages call the experts of one rank. Absent: their local index.
  std::optional<ConstTensorView> expert_ids;

  /// Set by a caller that gives the weights up: "these bytes of w13 or w2 will not be read again". The packer calls it
  /// as it goes, so that peak memory is the weights plus a few pages of one expert. Storage::discard fits.
  std::function<void(const void* begin, std::int64_t bytes)> give_up;

  std::int64_t num_local_experts() const noexcept { return w13.rank > 0 ? w13.size(0) : 0; }
};

/// Weights in the layout of one kernel. Movable handle; addresses inside never change, not even by update().
class PackedWeights {
 public:
  virtual ~PackedWeights() = default;
  /// The registry name of the part whose layout this is, e.g. "experts/cpu_bf16_amx".
  virtual const std::string& layout() const noexcept = 0;
  virtual std::int64_t bytes() const noexcept = 0;
  virtual std::int64_t num_local_experts() const noexcept = 0;
  /// Everything that belongs to single experts, as tensors whose first index is the expert and whose entries are
  /// contiguous: what moves when an expert changes its rank (eplb.hpp). Empty: this layout cannot be taken apart.
  virtual std::vector<TensorView> expert_tensors() const { return {}; }
};

}  // namespace conclave
