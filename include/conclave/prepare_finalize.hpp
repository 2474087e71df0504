// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Stages 2 and 4, one class because both ends of a collective must agree.
//   prepare:  hidden states [M, H], Routing -> Prepared   (weight on input, quantise, dispatch)
//   finalize: ExpertOutput, Routing         -> output [M, H] (combine, weight, reduce)
#pragma once

#include <optional>
#include <string>

#include "conclave/config.hpp"
#include "conclave/experts.hpp"
#include "conclave/flow.hpp"
#include "conclave/pending.hpp"
#include "conclave/reduce.hpp"
#include "conclave/stream.hpp"
#include "conclave/workspace.hpp"

namespace conclave {

class PrepareFinalize {
 public:
  virtual ~PrepareFinalize() = default;
  virtual const std::string& name() const noexcept = 0;
  virtual bool is_monolithic() const noexcept = 0;
  virtual ActivationFormat activation_format() const noexcept { return ActivationFormat::standard; }
  /// The id type that the transport wants; nullopt: any.
  virtual std::optional<DType> topk_indices_dtype() const noexcept { return std::nullopt; }
  /// The most tokens of one rank in one call; nullopt: no limit.
  virtual std::optional<std::int64_t> max_num_tokens_per_rank() const noexcept { return std::nullopt; }
  virtual std::int64_t num_dispatchers() const noexcept { return 1; }
  /// True: finalize has summed over ranks.
  virtual bool output_is_reduced() const noexcept { return false; }
  virtual bool supports_async() const noexcept { return false; }
  /// True: finalize only reduces on this rank, so whoever consumes an UnfinalizedMoeOutput may do it instead.
  virtual bool supports_deferred_finalize() const noexcept { return false; }
  /// True: prepare makes codes of this key for experts that want their inputs quantised.
  virtual bool can_quantise(QuantKey /*activations*/) const noexcept { return false; }
  /// Late negotiation with the experts that were chosen (scale layouts).
  virtual void post_init_setup(const Experts&) {}
  /// Rows that experts will see for `num_tokens` tokens of this rank: M (standard) or slots per expert (batched).
  virtual std::int64_t expert_rows(std::int64_t num_tokens) const noexcept { return num_tokens; }
};

struct PrepareInput {
  ConstTensorView hidden_states;  ///< [M, H]; never changed
  Routing routing;
  std::optional<ConstTensorView> expert_map;  ///< i32 [E]
  bool apply_router_weight_on_input = false;
  bool defer_input_quant = false;
  int channel = 0;  ///< Of the communicator: one for each micro-batch under way.
};

struct FinalizeInput {
  ExpertOutput expert_output;
  Routing routing;  ///< The caller's, before dispatch.
  std::optional<ConstTensorView> expert_map;
  bool router_weight_applied = false;
  const WeightAndReduce* weight_and_reduce = nullptr;
  void* handle = nullptr;  ///< Prepared::handle of the same tokens.
};

class ModularPrepareFinalize : public PrepareFinalize {
 public:
  bool is_monolithic() const noexcept final { return false; }
  /// Memory comes from `arena`; called with a measuring arena and null data to size it.
  virtual void plan_scratch(Arena& arena, std::int64_t num_tokens) const = 0;
  virtual Prepared prepare(const PrepareInput& input, Arena& arena, Stream stream) = 0;
  virtual void finalize(const FinalizeInput& input, const TensorView& output, Stream stream) = 0;
  /// Asynchronous forms; only where supports_async(). `input`, `arena` and `output` must outlive the Pending, and the
  /// output is not valid before finish().
  virtual Pending<Prepared> prepare_async(const PrepareInput& input, Arena& arena, Stream stream);
  virtual Pending<Done> finalize_async(const FinalizeInput& input, const TensorView& output, Stream stream);
};

class MonolithicPrepareFinalize : public PrepareFinalize {
 public:
  bool is_monolithic() const noexcept final { return true; }
  virtual void plan_scratch(Arena& arena, std::int64_t num_tokens) const = 0;
  virtual PreparedMonolithic prepare(const ConstTensorView& hidden_states, const ConstTensorView& router_logits,
                                     bool defer_input_quant, Arena& arena, Stream stream) = 0;
  virtual void finalize(const ExpertOutput& expert_output, const TensorView& output, Stream stream) = 0;
};

}  // namespace conclave
