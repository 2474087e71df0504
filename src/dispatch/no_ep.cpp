// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Prepare and finalize on one rank, standard format. In: hidden states [M, H]. Out: the same view, untouched, unless
// the router weight goes on the input: then a weighted copy.
#include <algorithm>

#include "conclave/registry.hpp"
#include "cpu/parallel_for.hpp"
#include "dispatch/finalize_local.hpp"
#include "dispatch/supports.hpp"
#include "dispatch/weight_on_input.hpp"

namespace conclave {
namespace dispatch {
namespace {

/// Below this many elements a parallel region costs more than the copy.
constexpr std::int64_t kElementsWorthThreads = 16384;

class NoEp final : public ModularPrepareFinalize {
 public:
  NoEp(std::string name, const MoeConfig& moe) : name_(std::move(name)), moe_(moe) {}

  const std::string& name() const noexcept override { return name_; }
  bool supports_deferred_finalize() const noexcept override { return true; }

  void plan_scratch(Arena& arena, std::int64_t num_tokens) const override {
    if (moe_.apply_router_weight_on_input) take_weighted(arena, num_tokens);
  }

  Prepared prepare(const PrepareInput& input, Arena& arena, Stream stream) override {
    check_prepare(input, moe_);
    Prepared prepared;
    prepared.activations = input.hidden_states;
    if (!input.apply_router_weight_on_input) return prepared;
    const TensorView weighted = take_weighted(arena, input.hidden_states.size(0));
    cpu::parallel_for(*stream.executor, weighted.size(0), kElementsWorthThreads / moe_.expert_width(),
                      [&](std::int64_t begin, std::int64_t end, int) {
                        for (std::int64_t m = begin; m < end; ++m)
                          scale_row(input.hidden_states.at(m), router_weight(input.routing, m, 0), weighted.at(m));
                      });
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

Entry<PrepareFinalize> dispatch_no_ep();
Entry<PrepareFinalize> dispatch_no_ep() {
  const std::string name = "dispatch/no_ep";
  return {.name = name,
          .defers_finalize = true,
          .supports = dispatch::supports_local,
          .make = [name](const PartContext& context) -> std::unique_ptr<PrepareFinalize> {
            return std::make_unique<dispatch::NoEp>(name, context.problem.moe);
          }};
}

}  // namespace parts
}  // namespace conclave
