// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Prepare and finalize on one rank around experts that route by themselves. In: hidden states and logits. Out: the same
// views; finalize copies the reduced rows, if they are not in the output already.
#include "base/error.hpp"
#include "base/tensor_format.hpp"
#include "conclave/registry.hpp"
#include "dispatch/supports.hpp"

namespace conclave {
namespace dispatch {
namespace {

class NoEpMonolithic final : public MonolithicPrepareFinalize {
 public:
  explicit NoEpMonolithic(std::string name) : name_(std::move(name)) {}

  const std::string& name() const noexcept override { return name_; }
  void plan_scratch(Arena& /*arena*/, std::int64_t /*num_tokens*/) const override {}

  PreparedMonolithic prepare(const ConstTensorView& hidden_states, const ConstTensorView& router_logits,
                             bool /*defer_input_quant*/, Arena& /*arena*/, Stream /*stream*/) override {
    require(router_logits.rank == 2 && router_logits.size(0) == hidden_states.size(0),
            "router_logits: given {}, expected {} rows as hidden_states", router_logits, hidden_states.size(0));
    PreparedMonolithic prepared;
    prepared.activations = hidden_states;
    prepared.router_logits = router_logits;
    return prepared;
  }

  void finalize(const ExpertOutput& expert_output, const TensorView& output, Stream stream) override {
    require(expert_output.kind == ExpertOutputKind::reduced, "expert_output: given kind {}, expected reduced",
            name_of(expert_output.kind));
    ReduceInput input;
    input.rows = expert_output.rows;
    weight_and_reduce(WeightAndReduceKind::no_op).apply(input, output, stream);
  }

 private:
  std::string name_;
};

}  // namespace
}  // namespace dispatch

namespace parts {

Entry<PrepareFinalize> dispatch_no_ep_monolithic();
Entry<PrepareFinalize> dispatch_no_ep_monolithic() {
  const std::string name = "dispatch/no_ep_monolithic";
  return {.name = name,
          .monolithic = true,
          .supports = dispatch::supports_local,
          .make = [name](const PartContext& /*context*/) -> std::unique_ptr<PrepareFinalize> {
            return std::make_unique<dispatch::NoEpMonolithic>(name);
          }};
}

}  // namespace parts
}  // namespace conclave
