// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The composition prepare -> experts -> finalize. Checks at construction that the two parts fit each other; run()
// neither allocates nor changes its inputs. Routing, shared experts and the rest of the layer are in layer.hpp.
#pragma once

#include <memory>
#include <optional>

#include "conclave/config.hpp"
#include "conclave/experts.hpp"
#include "conclave/prepare_finalize.hpp"
#include "conclave/trace.hpp"
#include "conclave/workspace.hpp"

namespace conclave {

struct KernelInput {
  ConstTensorView hidden_states;      ///< [M, H]
  std::optional<Routing> routing;     ///< Modular kernels.
  std::optional<RouterInput> router;  ///< Monolithic kernels.
  std::optional<ConstTensorView> expert_map;
  std::optional<Routing> captured;  ///< Monolithic kernels: receives the routing.
  /// Done between the launch and the receipt of finalize when that is asynchronous, after it otherwise.
  const FunctionRef<void()>* during_finalize = nullptr;
  int channel = 0;                    ///< Of the communicator: one for each micro-batch under way.
  StageObserver* observer = nullptr;  ///< Hears of every stage.
};

class FusedMoeKernel {
 public:
  /// Throws Error if one part is modular and the other monolithic, or their activation formats differ.
  FusedMoeKernel(const Problem& problem, std::unique_ptr<PrepareFinalize> prepare_finalize,
                 std::unique_ptr<Experts> experts);

  bool is_monolithic() const noexcept { return experts_->is_monolithic(); }
  bool supports_expert_map() const noexcept { return experts_->supports_expert_map(); }
  bool output_is_reduced() const noexcept { return prepare_finalize_->output_is_reduced(); }
  const PrepareFinalize& prepare_finalize() const noexcept { return *prepare_finalize_; }
  const Experts& experts() const noexcept { return *experts_; }

  /// Takes everything that run() needs for `num_tokens` tokens from `arena`.
  void plan_scratch(Arena& arena, std::int64_t num_tokens) const;

  /// output [M, H] in the layer's dtype, or in f32 where it is a part of a sum that is rounded later; every element is
  /// written. M = 0 is legal, with null data.
  /// Throws Error on shapes, dtypes or (checked mode) ids that break the contract, before anything is written.
  void run(const KernelInput& input, const PackedWeights& weights, const TensorView& output, Arena& arena,
           Stream stream);

  /// True: run_open() leaves the sum over top-k to the consumer as well, and its `routed` is not used.
  bool leaves_topk_open() const noexcept { return experts_->output_kind() == ExpertOutputKind::unfinalized; }
  /// As run(), with the last reduction left to the consumer (tail.hpp): an UnfinalizedMoeOutput whose views point into
  /// `arena`, or else this rank's routed sum in `routed` [M, H]. M = 0 is finalized: a view [0, H].
  /// Throws Error where finalize has summed over ranks, so that nothing is left open.
  MoeOutput run_open(const KernelInput& input, const PackedWeights& weights, const TensorView& routed, Arena& arena,
                     Stream stream);

 private:
  void check_input(const KernelInput& input, const PackedWeights& weights, Stream stream) const;
  /// `open` null: everything ends in `output`. Else experts that leave the sum over top-k open end in `*open`.
  void run_modular(const KernelInput& input, const PackedWeights& weights, const TensorView& output, Arena& arena,
                   Stream stream, MoeOutput* open = nullptr);
  void run_monolithic(const KernelInput& input, const PackedWeights& weights, const TensorView& output, Arena& arena,
                      Stream stream);
  Problem problem_;
  std::unique_ptr<PrepareFinalize> prepare_finalize_;
  std::unique_ptr<Experts> experts_;
};

}  // namespace conclave
