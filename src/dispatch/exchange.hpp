// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What the parts that exchange tokens over ranks have in common. A part adds plan_scratch(), prepare_async() and
// finalize_async(). What one pair of calls must remember lies in the arena, never in the part: several micro-batches
// may be under way in one part.
#pragma once

#include <memory>
#include <string>

#include "conclave/comm.hpp"
#include "conclave/prepare_finalize.hpp"
#include "conclave/registry.hpp"
#include "dispatch/expert_owners.hpp"
#include "dispatch/row_format.hpp"

namespace conclave::dispatch {

class ExchangePrepareFinalize : public ModularPrepareFinalize {
 public:
  /// Throws Error if the communicator is not that of problem.parallel.
  ExchangePrepareFinalize(std::string name, const PartContext& context);

  const std::string& name() const noexcept final { return name_; }
  std::int64_t num_dispatchers() const noexcept final { return owners_.num_ranks(); }
  bool output_is_reduced() const noexcept final { return true; }
  bool supports_async() const noexcept final { return true; }
  bool can_quantise(QuantKey activations) const noexcept final { return can_code_rows(activations); }
  void post_init_setup(const Experts& experts) final { row_format_.negotiate(experts); }
  std::optional<DType> topk_indices_dtype() const noexcept final { return DType::i32; }
  std::optional<std::int64_t> max_num_tokens_per_rank() const noexcept final { return moe_.max_num_tokens; }
  /// Other ranks may bring as many tokens as they like, whatever this one brings.
  std::int64_t expert_rows(std::int64_t /*num_tokens*/) const noexcept final {
    return num_dispatchers() * moe_.max_num_tokens;
  }

  Prepared prepare(const PrepareInput& input, Arena& arena, Stream stream) final;
  void finalize(const FinalizeInput& input, const TensorView& output, Stream stream) final;

 protected:
  const MoeConfig& moe() const noexcept { return moe_; }
  const ExpertOwners& owners() const noexcept { return owners_; }
  int num_ranks() const noexcept { return owners_.num_ranks(); }
  int rank() const noexcept { return rank_; }
  /// Throws Error if the part was made without one and there are several ranks.
  Communicator& communicator() const;

  std::int64_t hidden_size() const noexcept { return moe_.expert_width(); }
  /// Rows of activations on the wire and behind it.
  const RowFormat& row_format() const noexcept { return row_format_; }

  /// What experts get of rows that have arrived; `scales` is `received`, or filled from it.
  Prepared prepared_rows(const TensorView& rows, const TensorView& received, const TensorView& scales) const;
  /// Ids and weights of `token` as they are sent: what is no expert becomes -1.
  void pack_picks(const PrepareInput& input, std::int64_t token, std::int32_t* ids, float* weights) const;
  /// The global expert id of (token, pick), -1 if there is none.
  std::int64_t expert_of(const Routing& routing, std::int64_t token, std::int64_t pick) const;

 private:
  std::string name_;
  MoeConfig moe_;
  ExpertOwners owners_;
  RowFormat row_format_;
  int rank_;
  std::unique_ptr<Communicator> alone_;  ///< Where there is one rank and no communicator.
  Communicator* communicator_;
};

/// Checks of input.routing beside those of check_prepare(): nothing may be written before they pass.
void check_exchange(const PrepareInput& input, const MoeConfig& moe);

/// A plain struct in the arena; null while it measures.
template <class State>
State* take_state(Arena& arena) {
  static_assert(std::is_trivially_destructible_v<State>);
  void* at = arena.take(DType::u8, {static_cast<std::int64_t>(sizeof(State))}).data;
  return at == nullptr ? nullptr : new (at) State();
}

/// The rows of this rank's experts, weighted and summed over the picks that live here, one for each row that was
/// dispatched: as the experts left them if they did that, else reduced into `partial` (f32 [rows, H]).
ConstTensorView partial_rows(const FinalizeInput& input, const Routing& dispatched, const MoeConfig& moe,
                             const TensorView& partial, Stream stream);

/// The entry of a part that does `all2all`.
template <class Part>
Entry<PrepareFinalize> exchange_entry(const std::string& name, ActivationFormat format,
                                      Support (*supports)(const Problem&)) {
  return {.name = name,
          .format = format,
          .supports = supports,
          .make = [name](const PartContext& context) -> std::unique_ptr<PrepareFinalize> {
            return std::make_unique<Part>(name, context);
          }};
}

}  // namespace conclave::dispatch
