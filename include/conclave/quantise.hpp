// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Quantised matrices on the host: the canonical tensors of every key, numbers -> codes and scales, and back. This codec
// is what kernels are compared with.
//
//   value = element * scale [* global scale]          fp8, mx, nvfp4, int8
//   value = (nibble - 8) * scale                      int4 without zero points
//   value = (nibble - zero point) * scale             int4 with them
//
// Every scale decodes, global ones and static ones of activations too: what a checkpoint stores as a factor for
// encoding (448 * 6 / amax of nvfp4) is inverted when it is read.
#pragma once

#include <optional>

#include "conclave/config.hpp"
#include "conclave/weights.hpp"

namespace conclave {

/// What a matrix is: fp8_block128 means blocks of 128x128 for weights and of 1x128 for activations.
enum class QuantRole : std::uint8_t { weights, activations };

struct MatrixShape {
  DType dtype = DType::u8;
  std::int64_t rows = 0, cols = 0;
  bool operator==(const MatrixShape&) const = default;
};

/// The tensors of one quantised matrix.
struct QuantShapes {
  /// fp8_e4m3 or i8 [rows, cols]; u8 [rows, ceil(cols / 2)] for 4 bits, element 2i in the low half of byte i.
  MatrixShape elements;
  MatrixShape scale;                        ///< f32, e8m0 or fp8_e4m3: one for each group; [1, 1] for a whole tensor
  std::optional<MatrixShape> global_scale;  ///< nvfp4: f32 [1, 1], or [rows, 1] where it is dynamic per token
  std::optional<MatrixShape> zero_point;    ///< u8, the shape of scale, values 0 to 15
};

/// Throws Error for none, for an unknown key, and for columns that the group does not divide. The fp8 block formats
/// have a shorter last block instead, as their public tools do.
QuantShapes shapes_of(QuantKey key, std::int64_t rows, std::int64_t cols, QuantRole role = QuantRole::weights);

/// One matrix with its scales; every view has rank 2 and the shape that shapes_of() says. Row strides are free, columns
/// of elements are contiguous. u8 may stand for any one-byte type.
template <class View>
struct BasicQuantMatrix {
  QuantKey key = QuantKey::none;
  QuantRole role = QuantRole::weights;
  std::int64_t rows = 0, cols = 0;
  View elements, scale, global_scale, zero_point;
};
using QuantMatrix = BasicQuantMatrix<TensorView>;
using ConstQuantMatrix = BasicQuantMatrix<ConstTensorView>;

/// Which scales are inputs of quantise() instead of results. Zero points go with `scale`.
struct GivenScales {
  bool scale = false;
  bool global_scale = false;
};

/// Codes and scales of `x` [rows, cols], f32, bf16 or f16 with any strides. A group that holds a NaN or an infinity
/// gets the scale NaN, so that it decodes to NaN and not to something plausible.
void quantise(const ConstTensorView& x, const QuantMatrix& out, GivenScales given = {});

/// out [rows, cols], f32, bf16 or f16.
void dequantise(const ConstQuantMatrix& in, const TensorView& out);

/// A relative error of an MoE block's output that weights under `key` stay within, against the output of the weights
/// they were made from (docs/formats.md has the argument). 0 for none.
double error_bound(QuantKey key) noexcept;

/// Expert weights in memory of their own.
struct QuantisedExperts {
  Tensor w13, w2;
  std::optional<Tensor> w13_scale, w2_scale, w13_global_scale, w2_global_scale, w13_zero_point, w2_zero_point;

  /// Views of these, and everything that `plain` has beside its matrices.
  ExpertWeights weights(const ExpertWeights& plain) const;
};

/// w13 and w2 under `key`. `split_gate_up`: tensor-wide scales of w13 are two for each expert, [E_local, 2] with the
/// gate's first whatever the row order, so that neither half loses range to the other.
QuantisedExperts quantise_experts(const MoeConfig& moe, QuantKey key, const ExpertWeights& plain,
                                  bool split_gate_up = false);

}  // namespace conclave
