// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: expert weights on the host or on the GPU. Out: device memory in the order of the kernels; the source is read
// expert by expert, so that a caller who gives it up never pays for two copies.
#pragma once

#include <string>

#include "conclave/config.hpp"
#include "conclave/stream.hpp"
#include "conclave/tensor.hpp"
#include "conclave/weights.hpp"

namespace conclave::experts::cuda {

/// What a part wants its weights to look like.
struct DeviceLayout {
  DType dtype = DType::bf16;
  std::int64_t alignment = 1;  ///< Columns, and rows of w2 and of each half of w13, are padded to multiples of it.
  bool interleaved = false;    ///< Gated w13: groups of 8 gate rows and 8 up rows; else in the order given.
};

class DeviceWeights final : public PackedWeights {
 public:
  DeviceWeights(std::string part, const DeviceLayout& layout, const Problem& problem, const ExpertWeights& weights,
                Stream stream);

  /// Overwrites the packed weights; addresses stay. Throws Error if the weights do not fit or their number changed.
  void assign(const Problem& problem, const ExpertWeights& weights, Stream stream);

  const std::string& layout() const noexcept override { return part_; }
  std::int64_t bytes() const noexcept override;
  std::int64_t num_local_experts() const noexcept override { return num_experts_; }

  std::int64_t hidden() const noexcept { return hidden_; }       ///< hidden_size, padded.
  std::int64_t inner() const noexcept { return inner_; }         ///< intermediate_size, padded.
  std::int64_t w13_rows() const noexcept { return w13_rows_; }   ///< inner() or twice it.
  const void* w13() const noexcept { return w13_.view().data; }  ///< [E, w13_rows(), hidden()]
  const void* w2() const noexcept { return w2_.view().data; }    ///< [E, hidden(), inner()]
  const float* w13_bias() const noexcept { return w13_bias_ ? w13_bias_.as<float>() : nullptr; }  ///< Rows as w13.
  const float* w2_bias() const noexcept { return w2_bias_ ? w2_bias_.as<float>() : nullptr; }

 private:
  void pack_matrix(const ConstTensorView& source, const Tensor& packed, bool gated, W13Layout order,
                   const ExpertWeights& weights, Stream stream);
  void pack_bias(const ConstTensorView& source, const Tensor& packed, bool gated, W13Layout order, Stream stream);

  std::string part_;
  DeviceLayout layout_;
  std::int64_t num_experts_ = 0, hidden_ = 0, inner_ = 0, w13_rows_ = 0;
  Tensor w13_, w2_, w13_bias_, w2_bias_;
};

}  // namespace conclave::experts::cuda
