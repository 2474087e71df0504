// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// A plan's names -> the objects they stand for, and the scratch memory that those objects need together.
#pragma once

#include <memory>

#include "conclave/kernel.hpp"
#include "conclave/plan.hpp"

namespace conclave {

/// The parts of one layer, built but without weights.
struct Composition {
  std::shared_ptr<const Router> router;
  std::unique_ptr<FusedMoeKernel> routed;
  std::unique_ptr<FusedMoeKernel> shared;  ///< Null if the layer has no shared expert.
  std::int64_t ranks_to_sum = 1;           ///< Whose outputs the layer, or its caller, must still sum.
  /// The shared expert runs while finalize waits for other ranks, so the two hold memory at the same time.
  bool overlaps_shared() const noexcept { return shared != nullptr && routed->prepare_finalize().supports_async(); }
};

/// Throws Error if the registry lacks a part that the plan names. Without a communicator, parts of several ranks can be
/// measured but not run.
Composition compose(const Plan& plan, const Registry& registry, Communicator* communicator = nullptr);

/// The layer's own buffers for `num_tokens` rows; members that the layer does not need are empty views.
struct LayerBuffers {
  TensorView logits;          ///< f32 [M, E]
  TensorView topk_ids;        ///< i32 [M, slots]
  TensorView topk_weights;    ///< f32 [M, slots]
  TensorView expert_ids;      ///< i32 [M, slots]: without zero experts
  TensorView expert_weights;  ///< f32 [M, slots]
  TensorView zero_weight;     ///< f32 [M]
  TensorView physical_ids;    ///< i32 [M, slots]: of replicas
  TensorView latent_f32;      ///< f32 [M, max(latent, H)]
  TensorView latent;          ///< dtype [M, latent]: input of the routed experts
  TensorView routed;          ///< f32 (GPU: dtype) [M, width]: their output
  TensorView shared_ids;      ///< i32 [M, 1], all 0
  TensorView shared_weights;  ///< f32 [M, 1]
  TensorView shared;          ///< f32 (GPU: dtype) [M, H]
  TensorView id_check;        ///< i64 [1], in checked mode on a GPU
};
LayerBuffers take_layer_buffers(const Problem& layer, Arena& arena, std::int64_t num_tokens);

/// Takes everything that a run of the composition needs; the same order of taking as the run itself.
void plan_layer_scratch(const Problem& layer, const Composition& parts, Arena& arena, std::int64_t num_tokens);

}  // namespace conclave
