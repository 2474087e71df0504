// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Prepare and finalize on one rank, batched format, on a GPU. In: hidden states [M, H], ids [M, k]. Out: as
// dispatch/no_ep_batched: [E_local, M, H], where expert e holds the counts[e] tokens that picked it, in token order.
// The counts stay on the GPU; rows behind them are not written.
#include "base/error.hpp"
#include "base/local_experts.hpp"
#include "base/slot_lookup.hpp"
#include "base/tensor_format.hpp"
#include "conclave/registry.hpp"
#include "dispatch/cuda/place_rows.hpp"
#include "dispatch/finalize_local.hpp"
#include "dispatch/supports.hpp"
#include "dispatch/weight_on_input.hpp"

namespace conclave {
namespace dispatch {
namespace {

struct PlacedRows {
  TensorView activations;  ///< [E_local, T, H]
  TensorView counts;       ///< i32 [E_local]
  TensorView row_tokens;   ///< i32 [E_local, T]
};

class CudaNoEpBatched final : public ModularPrepareFinalize {
 public:
  CudaNoEpBatched(std::string name, const Problem& problem)
      : name_(std::move(name)), moe_(problem.moe), num_local_(num_local_experts(problem)) {}

  const std::string& name() const noexcept override { return name_; }
  ActivationFormat activation_format() const noexcept override { return ActivationFormat::batched_experts; }
  std::optional<std::int64_t> max_num_tokens_per_rank() const noexcept override { return moe_.max_num_tokens; }

  void plan_scratch(Arena& arena, std::int64_t num_tokens) const override { take(arena, num_tokens); }

  Prepared prepare(const PrepareInput& input, Arena& arena, Stream stream) override {
    check_prepare(input, moe_);
    require(input.hidden_states.device == stream.device, "hidden_states: given {}, expected it on {}",
            input.hidden_states, stream.device);
    const SlotLookup slot_of(input.routing.topk_ids, input.expert_map, moe_.num_weight_experts(), num_local_);
    const PlacedRows rows = take(arena, slot_of.num_tokens());
    auto* const queue = static_cast<cudaStream_t>(stream.native);
    place_rows(slot_of, rows.counts, rows.row_tokens, queue);
    const ConstTensorView weights = input.routing.topk_weights;
    copy_placed_rows(input.hidden_states, rows.counts, rows.row_tokens,
                     input.apply_router_weight_on_input ? &weights : nullptr, rows.activations, queue);
    Prepared prepared;
    prepared.activations = rows.activations;
    prepared.expert_tokens = ExpertTokens{rows.counts, nullptr};
    return prepared;
  }

  void finalize(const FinalizeInput& input, const TensorView& output, Stream stream) override {
    finalize_local(input, moe_, output, stream);
  }

 private:
  PlacedRows take(Arena& arena, std::int64_t num_tokens) const {
    PlacedRows rows;
    rows.activations = arena.take(moe_.dtype, {num_local_, num_tokens, moe_.expert_width()});
    rows.counts = arena.take(DType::i32, {num_local_});
    rows.row_tokens = arena.take(DType::i32, {num_local_, num_tokens});
    return rows;
  }

  std::string name_;
  MoeConfig moe_;
  std::int64_t num_local_;
};

}  // namespace
}  // namespace dispatch

namespace parts {

Entry<PrepareFinalize> dispatch_cuda_no_ep_batched();
Entry<PrepareFinalize> dispatch_cuda_no_ep_batched() {
  const std::string name = "dispatch/cuda_no_ep_batched";
  return {.name = name,
          .format = ActivationFormat::batched_experts,
          .supports = dispatch::supports_local_on_cuda,
          .make = [name](const PartContext& context) -> std::unique_ptr<PrepareFinalize> {
            return std::make_unique<dispatch::CudaNoEpBatched>(name, context.problem);
          }};
}

}  // namespace parts
}  // namespace conclave
