// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Prepare and finalize on one rank, standard format, on a GPU. In: hidden states [M, H]. Out: the same view, untouched,
// unless the router weight goes on the input: then a weighted copy.
#include "base/error.hpp"
#include "base/tensor_format.hpp"
#include "conclave/registry.hpp"
#include "dispatch/cuda/scale_rows.hpp"
#include "dispatch/finalize_local.hpp"
#include "dispatch/supports.hpp"
#include "dispatch/weight_on_input.hpp"

namespace conclave {
namespace dispatch {
namespace {

class CudaNoEp final : public ModularPrepareFinalize {
 public:
  CudaNoEp(std::string name, const MoeConfig& moe) : name_(std::move(name)), moe_(moe) {}

  const std::string& name() const noexcept override { return name_; }
  bool supports_deferred_finalize() const noexcept override { return true; }

  void plan_scratch(Arena& arena, std::int64_t num_tokens) const override {
    if (moe_.apply_router_weight_on_input) take_weighted(arena, num_tokens);
  }

  Prepared prepare(const PrepareInput& input, Arena& arena, Stream stream) override {
    check_prepare(input, moe_);
    require(input.hidden_states.device == stream.device, "hidden_states: given {}, expected it on {}",
            input.hidden_states, stream.device);
    Prepared prepared;
    prepared.activations = input.hidden_states;
    if (!input.apply_router_weight_on_input) return prepared;
    const TensorView weighted = take_weighted(arena, input.hidden_states.size(0));
    scale_rows(input.hidden_states, input.routing.topk_weights, weighted, static_cast<cudaStream_t>(stream.native));
    prepared.activations = weighted;
    return prepared;
  }

  void finalize(const FinalizeInput& input, const TensorView& output, Stream stream) override {
    finalize_local(input, moe_, output, stream);
  }

 private:
  TensorView take_weighted(Arena& arena, std::int64_t num_tokens) const {
    return arena.take(moe_.dtype, {num_tokens, moe_.expert_width()});
  }

  std::string name_;
  MoeConfig moe_;
};

}  // namespace
}  // namespace dispatch

namespace parts {

Entry<PrepareFinalize> dispatch_cuda_no_ep();
Entry<PrepareFinalize> dispatch_cuda_no_ep() {
  const std::string name = "dispatch/cuda_no_ep";
  return {.name = name,
          .defers_finalize = true,
          .supports = dispatch::supports_local_on_cuda,
          .make = [name](const PartContext& context) -> std::unique_ptr<PrepareFinalize> {
            return std::make_unique<dispatch::CudaNoEp>(name, context.problem.moe);
          }};
}

}  // namespace parts
}  // namespace conclave
