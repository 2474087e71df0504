// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Prepare and finalize on one rank, batched format. In: hidden states [M, H], ids [M, k]. Out: [E_local, M, H], where
// expert e holds the counts[e] tokens that picked it, each once, in token order; rows behind them are not written.
//
// T is M: a token that names an expert twice (duplicate ids are legal) needs one row there, which finalize adds twice,
// so no expert can get more than every token once.
#include <algorithm>

#include "base/local_experts.hpp"
#include "base/slot_lookup.hpp"
#include "conclave/registry.hpp"
#include "cpu/parallel_for.hpp"
#include "dispatch/finalize_local.hpp"
#include "dispatch/row_format.hpp"
#include "dispatch/supports.hpp"
#include "dispatch/weight_on_input.hpp"

namespace conclave {
namespace dispatch {
namespace {

/// Below this many elements a parallel region costs more than the copy.
constexpr std::int64_t kBatchedElementsWorthThreads = 16384;

struct Buffers {
  TensorView activations;  ///< [E_local, T, H]: numbers, or codes
  TensorView scales;       ///< [E_local, T, groups] of codes
  TensorView counts;       ///< i32 [E_local]
  TensorView rows;         ///< i32 [M, k]: row of (token, pick) at its expert; -1 where there is nothing to copy
};

class NoEpBatched final : public ModularPrepareFinalize {
 public:
  NoEpBatched(std::string name, const Problem& problem)
      : name_(std::move(name)), moe_(problem.moe), num_local_(num_local_experts(problem)), row_format_(problem) {}

  const std::string& name() const noexcept override { return name_; }
  bool can_quantise(QuantKey activations) const noexcept override { return can_code_rows(activations); }
  void post_init_setup(const Experts& experts) override { row_format_.negotiate(experts); }
  ActivationFormat activation_format() const noexcept override { return ActivationFormat::batched_experts; }
  std::optional<std::int64_t> max_num_tokens_per_rank() const noexcept override { return moe_.max_num_tokens; }
  std::int64_t expert_rows(std::int64_t num_tokens) const noexcept override { return num_tokens; }

  void plan_scratch(Arena& arena, std::int64_t num_tokens) const override { take(arena, num_tokens, moe_.num_slots()); }

  Prepared prepare(const PrepareInput& input, Arena& arena, Stream stream) override {
    check_prepare(input, moe_);
    row_format_.check(input);
    const SlotLookup slot_of(input.routing.topk_ids, input.expert_map, moe_.num_weight_experts(), num_local_);
    const Buffers buffers = take(arena, slot_of.num_tokens(), slot_of.top_k());
    count(slot_of, buffers);
    cpu::parallel_for(*stream.executor, slot_of.num_tokens() * slot_of.top_k(),
                      kBatchedElementsWorthThreads / moe_.expert_width(),
                      [&](std::int64_t begin, std::int64_t end, int) {
                        for (std::int64_t item = begin; item < end; ++item)
                          copy(input, slot_of, buffers, item / slot_of.top_k(), item % slot_of.top_k());
                      });
    Prepared prepared;
    prepared.activations = buffers.activations;
    if (row_format_.coded()) prepared.scales = buffers.scales;
    prepared.expert_tokens = ExpertTokens{buffers.counts, buffers.counts.as<std::int32_t>()};
    return prepared;
  }

  void finalize(const FinalizeInput& input, const TensorView& output, Stream stream) override {
    finalize_local(input, moe_, output, stream);
  }

 private:
  Buffers take(Arena& arena, std::int64_t num_tokens, std::int64_t top_k) const {
    Buffers buffers;
    buffers.activations = row_format_.take_rows(arena, {num_local_, num_tokens});
    buffers.scales = row_format_.take_scales(arena, {num_local_, num_tokens});
    buffers.counts = arena.take(DType::i32, {num_local_});
    buffers.rows = arena.take(DType::i32, {num_tokens, top_k});
    return buffers;
  }

  /// In token order, on one thread: the rows that finalize will look for depend on that order. A handful of integer
  /// operations for each pick, against H copied elements.
  static void count(const SlotLookup& slot_of, const Buffers& buffers) {
    auto* counts = buffers.counts.as<std::int32_t>();
    auto* rows = buffers.rows.as<std::int32_t>();
    std::fill_n(counts, buffers.counts.numel(), 0);
    for (std::int64_t token = 0; token < slot_of.num_tokens(); ++token)
      for (std::int64_t pick = 0; pick < slot_of.top_k(); ++pick) {
        const std::int64_t slot = slot_of(token, pick);
        const bool has_row = slot >= 0 && slot_of.is_first(token, pick, slot);
        rows[token * slot_of.top_k() + pick] = has_row ? counts[slot]++ : -1;
      }
  }

  void copy(const PrepareInput& input, const SlotLookup& slot_of, const Buffers& buffers, std::int64_t token,
            std::int64_t pick) const {
    const std::int32_t row = buffers.rows.at(token).as<std::int32_t>()[pick];
    if (row < 0) return;
    // The router weight goes on the input with one pick only: that of the token.
    const std::int64_t expert = slot_of(token, pick);
    row_format_.pack(input, token, buffers.activations.at(expert).at(row).data, buffers.scales.at(expert).at(row));
  }

  std::string name_;
  MoeConfig moe_;
  std::int64_t num_local_;
  RowFormat row_format_;
};

}  // namespace
}  // namespace dispatch

namespace parts {

Entry<PrepareFinalize> dispatch_no_ep_batched();
Entry<PrepareFinalize> dispatch_no_ep_batched() {
  const std::string name = "dispatch/no_ep_batched";
  return {.name = name,
          .format = ActivationFormat::batched_experts,
          .supports = dispatch::supports_local,
          .make = [name](const PartContext& context) -> std::unique_ptr<PrepareFinalize> {
            return std::make_unique<dispatch::NoEpBatched>(name, context.problem);
          }};
}

}  // namespace parts
}  // namespace conclave
