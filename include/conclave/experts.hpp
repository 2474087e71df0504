// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Stage 3. Prepared activations and packed weights -> rows: permute, GEMM1, activation, GEMM2, unpermute.
// A kernel author derives from ModularExperts (ids and weights come in) or MonolithicExperts (logits come in), and
// registers an entry (registry.hpp).
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "conclave/config.hpp"
#include "conclave/error.hpp"
#include "conclave/flow.hpp"
#include "conclave/reduce.hpp"
#include "conclave/router.hpp"
#include "conclave/stream.hpp"
#include "conclave/weights.hpp"
#include "conclave/workspace.hpp"

namespace conclave {

/// What experts need for `num_tokens` rows (standard) or slots for each expert (batched). The library decides where
/// each buffer lies. Exact for the output, at least as large for the rest.
struct ExpertsBuffers {
  TensorView workspace13;  ///< Holds the result of either product.
  TensorView workspace2;   ///< Holds the activation's result.
  TensorView output;       ///< Shape by output_kind().
  TensorView scratch;      ///< u8; permutation indices, counts, packed rows.
};

/// What a part expects of one call, for plans.
struct Forecast {
  int launches = 0;    ///< Kernels that it starts on a device; 0 on a CPU.
  double seconds = 0;  ///< Of the layer from router logits to output, for uniform routing; 0: the part has no model.
};

class Experts {
 public:
  virtual ~Experts() = default;
  virtual const std::string& name() const noexcept = 0;
  virtual bool is_monolithic() const noexcept = 0;
  virtual ActivationFormat activation_format() const noexcept { return ActivationFormat::standard; }
  virtual ExpertOutputKind output_kind() const noexcept = 0;
  /// True: prepare must not quantise; this part does it itself.
  virtual bool expects_unquantized_inputs() const noexcept { return false; }
  /// How it wants the scales of inputs that prepare has quantised.
  virtual ScaleLayout activation_scale_layout() const noexcept { return ScaleLayout::row_major; }
  virtual bool supports_expert_map() const noexcept = 0;

  /// Copies the weights into this part's layout, padded where it wants padding. Throws Error naming expected and given
  /// shapes or dtypes. With weights.give_up set, source bytes are released as they are consumed.
  virtual std::unique_ptr<PackedWeights> pack(const ExpertWeights& weights, Stream stream) const = 0;
  /// Overwrites packed weights in place: every address that run() used before stays valid and sees the new values.
  /// Throws Error if `packed` was made by another part.
  virtual void update(PackedWeights& packed, const ExpertWeights& weights, Stream stream) const = 0;

  /// Takes the four buffers from `arena` for `num_tokens` (standard) or tokens per expert (batched); called both to
  /// measure and to run. Monotone in num_tokens and independent of routing.
  virtual ExpertsBuffers take_buffers(Arena& arena, std::int64_t num_tokens) const = 0;

  /// One line for the plan: register tile, blocks, how work is split for this many tokens.
  virtual std::string describe(std::int64_t num_tokens) const = 0;
  virtual Forecast forecast(std::int64_t /*num_tokens*/) const { return {}; }
};

struct ExpertsInput {
  ConstTensorView hidden_states;              ///< [M, H] or [E_local, T, H]
  std::optional<ConstTensorView> scales;      ///< Of quantised hidden states.
  ConstTensorView topk_ids;                   ///< i32 [M, k], global ids, -1 empty
  ConstTensorView topk_weights;               ///< f32 [M, k]
  std::optional<ConstTensorView> expert_map;  ///< i32 [E]; absent: global id is local slot
  std::optional<ExpertTokens> expert_tokens;  ///< Required in the batched format.
  bool router_weight_applied = false;         ///< The input carries the weight already; the output must not.
};

class ModularExperts : public Experts {
 public:
  bool is_monolithic() const noexcept final { return false; }
  /// What finalize must still do with the output.
  virtual WeightAndReduceKind finalize_weight_and_reduce() const noexcept = 0;
  /// Where finalize has nothing to do: apply() also fills an output of f32, unrounded, for a layer that adds to it.
  virtual bool writes_f32_output() const noexcept { return false; }
  /// Fills buffers.output. Never allocates, never changes its inputs, leaves no element of the output unwritten
  /// (batched format: of a valid row; on a GPU the others stay as they are).
  virtual void apply(const ExpertsInput& input, const PackedWeights& weights, const ExpertsBuffers& buffers,
                     Stream stream) const = 0;
  /// What apply() left in `buffers`, for parts whose output_kind() is unfinalized; the others throw Error.
  virtual UnfinalizedMoeOutput unfinalized_output(const ExpertsBuffers& /*buffers*/) const {
    throw Error(ErrorKind::invalid_argument, name() + ": its output is finalized");
  }
};

struct MonolithicInput {
  ConstTensorView hidden_states;  ///< [M, H]
  std::optional<ConstTensorView> scales;
  RouterInput router;  ///< logits [M, E] and what the rule needs beside them
  std::optional<ConstTensorView> expert_map;
  std::optional<Routing> captured;  ///< If set, receives the routing that was used (replay, reports).
};

class MonolithicExperts : public Experts {
 public:
  bool is_monolithic() const noexcept final { return true; }
  virtual void apply(const MonolithicInput& input, const PackedWeights& weights, const ExpertsBuffers& buffers,
                     Stream stream) const = 0;
};

class Communicator;

/// What a factory gets. Monolithic parts that do not fuse the routing arithmetic call `router`.
struct PartContext {
  const Problem& problem;
  std::shared_ptr<const Router> router;
  /// The ranks of problem.parallel; outlives the part. Null: one rank, or a part that is only planned and measured.
  Communicator* communicator = nullptr;
};

}  // namespace conclave
