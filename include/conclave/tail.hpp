// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What consumes a layer's output whose last reductions are still open (MoeOutput, flow.hpp), in one pass:
//   partial      = routed_scaling_factor * sum over k of weight * row + shared         this rank, f32
//   z            = sum of partial over the ranks, in their order, + residual           f32, rounded once to
//   residual_out normed       = z / sqrt(mean(z^2) + epsilon) * (norm_weight + weight_bias)         from the unrounded
//   z, rounded once quantised    = e4m3(normed / scale), from the unrounded normed; scale given, or amax / 448 of the
//   token
// That equals norm(all_reduce(routed * s + shared) + residual) with nothing rounded on the way. Readers that do not end
// in a norm call finish().
#pragma once

#include <cstdint>
#include <optional>

#include "conclave/comm.hpp"
#include "conclave/config.hpp"
#include "conclave/flow.hpp"
#include "conclave/function_ref.hpp"
#include "conclave/quant.hpp"
#include "conclave/stream.hpp"
#include "conclave/support.hpp"
#include "conclave/workspace.hpp"

namespace conclave {

struct TailConfig {
  double epsilon = 1e-6;            ///< Added to the mean of squares.
  double weight_bias = 0.0;         ///< 1 where the norm multiplies by weight + 1 (Gemma).
  QuantKey quant = QuantKey::none;  ///< Of the normed rows: none, fp8_token (dynamic) or fp8_tensor (static scale).
  std::int64_t max_num_tokens = 0;  ///< Above it fusing does not pay; 0: no limit.
};

/// Replaces `partial`, f32 [M, H] and contiguous, by its sum over all ranks, added in the order of ranks on every rank.
/// Not called for M = 0.
using AllReduceInPlace = FunctionRef<void(const TensorView& partial)>;

/// That sum over a communicator; made before run_tail(), on each rank.
class CommunicatorAllReduce {
 public:
  /// Takes the scratch for `num_tokens` rows from `arena`; the measuring form is plan_scratch().
  CommunicatorAllReduce(Communicator& communicator, Arena& arena, std::int64_t num_tokens, std::int64_t hidden_size,
                        int channel = 0);
  static void plan_scratch(const Communicator& communicator, Arena& arena, std::int64_t num_tokens,
                           std::int64_t hidden_size);
  void operator()(const TensorView& partial) const;

 private:
  Communicator* communicator_;
  TensorView scratch_;
  int channel_;
};

struct TailInput {
  MoeOutput moe;
  std::optional<ConstTensorView> residual;       ///< [M, H]; absent: nothing is added.
  ConstTensorView norm_weight;                   ///< [H]
  std::optional<ConstTensorView> static_scale;   ///< f32 [1]; fp8_tensor.
  const AllReduceInPlace* all_reduce = nullptr;  ///< Null: one rank, as always on a GPU.
};

/// What to write; at least one. Row strides are free. Floats are f32, bf16 or f16 by their tags.
struct TailOutput {
  std::optional<TensorView> residual_out;  ///< [M, H]; may be the residual's memory.
  std::optional<TensorView> normed;        ///< [M, H]
  std::optional<TensorView> quantised;     ///< fp8_e4m3 [M, H]
  std::optional<TensorView> token_scales;  ///< f32 [M]; fp8_token.
};

/// Takes what run_tail() needs for `num_tokens` rows.
void plan_tail_scratch(Arena& arena, std::int64_t num_tokens, std::int64_t hidden_size);

/// Writes every element of what `output` names. Never allocates. M = 0 is legal. Throws Error on a MoeOutput that is
/// not exactly one of routed and unfinalized, on shapes and dtypes, and on a permute map that points past its rows. On
/// a GPU, where it is work of the stream, such a row counts as none, and a static scale that is no positive number
/// gives codes of NaN.
void run_tail(const TailConfig& config, const TailInput& input, const TailOutput& output, Arena& arena, Stream stream);

/// The plain output [M, H]: routed * s + shared, rounded once, this rank's share. Row stride free, M = 0 legal.
void finish(const MoeOutput& moe, const TensorView& output, Stream stream);

/// True if a layer of this problem may leave its last reduction to run_tail() for `num_tokens` tokens; else why not.
Support tail_fusion_applies(const Problem& problem, const TailConfig& config, std::int64_t num_tokens);

}  // namespace conclave
