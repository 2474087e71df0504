// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The whole layer: router + kernel + shared expert + zero experts + latent projections. What most callers use:
//
//   Plan plan = conclave::plan(problem, registry);
//   MoeLayer layer(plan, registry, std::move(weights), stream);
//   layer.run({.hidden_states = x}, y, workspace, stream);
#pragma once

#include <memory>
#include <optional>

#include "conclave/eplb.hpp"
#include "conclave/plan.hpp"
#include "conclave/router.hpp"
#include "conclave/trace.hpp"
#include "conclave/weights.hpp"
#include "conclave/workspace.hpp"

namespace conclave {

/// Everything that the layer multiplies by. Unused members stay empty; a missing one that the config asks for, or one
/// that the config does not know, is an Error naming it.
struct LayerWeights {
  ExpertWeights experts;
  std::optional<ConstTensorView> router_weight;            ///< [E, H]; absent: the caller brings logits or ids
  std::optional<ConstTensorView> router_bias;              ///< [E], added to the logits (gpt-oss)
  std::optional<ConstTensorView> e_score_correction_bias;  ///< [E]
  std::optional<ConstTensorView> hash_table;               ///< i32 [vocabulary, k]
  CustomRouting custom_routing;
  std::optional<ConstTensorView> shared_w13;   ///< [2Is | Is, H], layout and activation as the routed experts'
  std::optional<ConstTensorView> shared_w2;    ///< [H, Is]
  std::optional<ConstTensorView> shared_gate;  ///< [H]
  std::optional<ConstTensorView> latent_in;    ///< [latent, H]
  std::optional<ConstTensorView> latent_out;   ///< [H, latent]
  /// i32 [num_weight_experts]; absent: what problem.parallel says, which is all on one rank.
  std::optional<ConstTensorView> expert_map;
  std::shared_ptr<const void> keep_alive;  ///< Owner of the views (mapped file, buffers) until they are packed.
};

struct LayerInput {
  ConstTensorView hidden_states;                   ///< [M, H], row stride free
  std::optional<ConstTensorView> router_logits{};  ///< [M, E] instead of router_weight
  std::optional<Routing> routing{};                ///< [M, num_slots] instead of routing at all
  std::optional<ConstTensorView> token_ids{};      ///< Hash-table routing.
  std::optional<Routing> captured{};               ///< Receives ids and weights as the router chose them.
  std::uint64_t step = 0;                          ///< Simulated routing.
  StageObserver* observer = nullptr;               ///< Hears of every stage.
};

class MoeLayer {
 public:
  /// Packs the weights (giving them up if weights.experts.give_up is set) and builds the kernel that `plan` chose.
  /// With a communicator of the plan's ranks (it must outlive the layer) the output is complete on every rank; without
  /// one, the caller sums the outputs of all ranks, and terms that are no rank's own are added on the first rank only.
  /// Throws Error on every rank, naming the fields, if the ranks do not agree about the problem.
  MoeLayer(const Plan& plan, const Registry& registry, LayerWeights weights, Stream stream,
           Communicator* communicator = nullptr);
  ~MoeLayer();
  MoeLayer(MoeLayer&&) noexcept;
  MoeLayer& operator=(MoeLayer&&) noexcept;

  const Plan& plan() const noexcept;
  /// Bytes of all packed weights.
  std::int64_t weight_bytes() const noexcept;

  /// output [M, H] in moe.dtype, row stride free. Never allocates once the workspace has grown to
  /// plan().workspace_bytes (lock it to be sure); never changes the inputs unless in_place was planned.
  void run(const LayerInput& input, const TensorView& output, Workspace& workspace, Stream stream,
           WorkspaceSlot slot = {});

  /// As run(), with the last reduction left to the consumer: run_tail() or finish() of tail.hpp. The views point into
  /// `slot` of the workspace and hold until it is used again. Needs open_workspace_bytes(). Throws Error for a layer
  /// that has a term behind the sum over ranks (tail_fusion_applies says which).
  MoeOutput run_open(const LayerInput& input, Workspace& workspace, Stream stream, WorkspaceSlot slot = {});
  std::int64_t open_workspace_bytes() const noexcept;

  /// The routed experts' packed weights, for exchange_weights() of eplb.hpp: all that one expert has, by local slot.
  /// Throws Error if their layout cannot be taken apart; update_weights() is the other way.
  std::vector<TensorView> expert_tensors() const;

  /// With parallel.enable_eplb: which slot of which rank holds which expert. Weights and expert maps are those of
  /// slots, initial_placement() at first; ids stay logical, and what run() gives is the same whatever the placement.
  const ExpertPlacement& placement() const;
  /// Places experts anew by the tokens that run() has seen since the last time, moves the packed weights between the
  /// ranks, in place, and starts counting again. All ranks call it between the same runs. Returns rebalance_report().
  /// Throws Error without enable_eplb, and where the packed weights cannot be taken apart.
  std::string rebalance();

  /// New weights of the same shapes, in place: addresses stay.
  void update_weights(const LayerWeights& weights, Stream stream);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace conclave
