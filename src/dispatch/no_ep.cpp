// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Prepare and finalize on one rank, standard format. In: hidden states [M, H]. Out: the same view, untouched, unless
// the router weight goes on the input or the experts take codes: then a copy.
#include <algorithm>

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
constexpr std::int64_t kElementsWorthThreads = 16384;

class NoEp final : public ModularPrepareFinalize {
 public:
  NoEp(std::string name, const Problem& problem) : name_(std::move(name)), moe_(problem.moe), row_format_(problem) {}

  const std::string& name() const noexcept override { return name_; }
  bool supports_deferred_finalize() const noexcept override { return true; }

  bool can_quantise(QuantKey activations) const noexcept override { return can_code_rows(activations); }
  void post_init_setup(const Experts& experts) override { row_format_.negotiate(experts); }

  void plan_scratch(Arena& arena, std::int64_t num_tokens) const override {
    if (changes_rows(moe_.apply_router_weight_on_input)) take(arena, num_tokens);
  }

  Prepared prepare(const PrepareInput& input, Arena& arena, Stream stream) override {
    check_prepare(input, moe_);
    row_format_.check(input);
    Prepared prepared;
    prepared.activations = input.hidden_states;
    if (!changes_rows(input.apply_router_weight_on_input)) return prepared;
    const auto [rows, scales] = take(arena, input.hidden_states.size(0));
    cpu::parallel_for(*stream.executor, rows.size(0), kElementsWorthThreads / moe_.expert_width(),
                      [&, to = rows, of = scales](std::int64_t begin, std::int64_t end, int) {
                        for (std::int64_t m = begin; m < end; ++m) row_format_.pack(input, m, to.at(m).data, of.at(m));
                      });
    prepared.activations = rows;
    if (row_format_.coded()) prepared.scales = scales;
    return prepared;
  }

  void finalize(const FinalizeInput& input, const TensorView& output, Stream stream) override {
    finalize_local(input, moe_, output, stream);
  }

 private:
  bool changes_rows(bool weight_on_input) const noexcept { return weight_on_input || row_format_.coded(); }
  /// Rows and their scales.
  std::pair<TensorView, TensorView> take(Arena& arena, std::int64_t num_tokens) const {
    const TensorView rows = row_format_.take_rows(arena, {num_tokens});
    return {rows, row_format_.take_scales(arena, {num_tokens})};
  }

  std::string name_;
  MoeConfig moe_;
  RowFormat row_format_;
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
            return std::make_unique<dispatch::NoEp>(name, context.problem);
          }};
}

}  // namespace parts
}  // namespace conclave
