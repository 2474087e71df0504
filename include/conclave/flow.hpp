// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The wire: the plain structs that travel between stages, in the order in which they travel.
//   logits -> Routing -> Prepared -> ExpertOutput -> output [M, H]   (or MoeOutput, with the reduction still open)
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "conclave/tensor.hpp"

namespace conclave {

/// How activations are laid out between prepare and finalize. Both ends of a composition must name the same one.
enum class ActivationFormat : std::uint8_t {
  standard,         ///< [num_tokens, H]; rows carry their ids beside them
  batched_experts,  ///< [num_local_experts, max_tokens, H]; the first counts[e] rows of expert e are valid
};
std::string_view name_of(ActivationFormat format) noexcept;

/// How the scales of quantised activations lie: [rows, groups] with either dimension contiguous. A prepare that
/// quantises learns it from the experts (post_init_setup).
enum class ScaleLayout : std::uint8_t { row_major, column_major };
std::string_view name_of(ScaleLayout layout) noexcept;

/// 1. What the router returns. Ids: -1 is an empty slot, every other legal value is in [0, E). Duplicates are summed.
struct Routing {
  TensorView topk_ids;      ///< i32 [M, k], or i64 where a transport asks for it
  TensorView topk_weights;  ///< f32 [M, k]
};

/// How many rows each local expert got.
struct ExpertTokens {
  TensorView counts;                          ///< i32 [E_local] on the device of the activations
  const std::int32_t* host_counts = nullptr;  ///< The same on the host, where prepare knows it; else null.
};

/// 2. What prepare returns.
struct Prepared {
  ConstTensorView activations;                ///< Shape by ActivationFormat, possibly quantised.
  std::optional<ConstTensorView> scales;      ///< Of quantised activations: one for each group, rows as theirs.
  std::optional<ExpertTokens> expert_tokens;  ///< Batched format, or a transport that counts.
  std::optional<Routing> dispatched;          ///< Ids and weights as dispatched; absent: the caller's hold.
  void* handle = nullptr;  ///< What finalize of the same part must know, in the arena; for FinalizeInput::handle.
};

/// 2'. What a monolithic prepare returns: the router still has to run.
struct PreparedMonolithic {
  ConstTensorView activations;
  std::optional<ConstTensorView> scales;
  ConstTensorView router_logits;
};

/// Rows after GEMM2 that nobody weighted or summed yet, for a consumer that fuses the reduction with what follows.
struct UnfinalizedMoeOutput {
  ConstTensorView gemm2_permuted;  ///< [rows, H], packed densely; rows beyond the map are never read.
  ConstTensorView expert_weights;  ///< [M, k], f32, bf16 or f16 by its dtype tag; carries a folded scaling factor.
  ConstTensorView expanded_idx_to_permuted_idx;  ///< i32 [M, k]; -1: no row on this rank.
};

/// 3. What experts left in their output buffer.
enum class ExpertOutputKind : std::uint8_t {
  unreduced_standard,  ///< [M, k, H], unweighted
  unreduced_batched,   ///< [E_local, T, H], unweighted
  reduced,             ///< [M, H], weighted and summed over this rank's experts
  unfinalized,         ///< UnfinalizedMoeOutput
};
std::string_view name_of(ExpertOutputKind kind) noexcept;

struct ExpertOutput {
  ExpertOutputKind kind = ExpertOutputKind::reduced;
  TensorView rows;                                  ///< Every kind but unfinalized.
  std::optional<UnfinalizedMoeOutput> unfinalized;  ///< That kind.
};

/// The layer's result with its last reduction left to the consumer (next layer's RMSNorm).
struct MoeOutput {
  std::optional<ConstTensorView> routed;            ///< Unreduced over ranks; or
  std::optional<UnfinalizedMoeOutput> unfinalized;  ///< unreduced over top-k as well.
  std::optional<ConstTensorView> shared_output;
  double routed_scaling_factor = 1.0;  ///< Multiplies the routed sum before the shared add; 1 where folded already.
};

}  // namespace conclave
