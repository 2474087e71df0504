// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Text of plans. Sizes in binary units, times in microseconds.
#include "kernel/report.hpp"

#include <fmt/format.h>

#include <array>

#include "kernel/replicas.hpp"

namespace conclave {
namespace {

std::string bytes_text(double bytes) {
  constexpr std::array<const char*, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.1f} {}", bytes, kUnits[unit]);
}

std::string stage_text(const char* title, const StagePlan& stage) {
  std::string text = fmt::format("{}: {}\n", title, stage.chosen.empty() ? "nothing fits" : stage.chosen);
  for (const Candidate& candidate : stage.candidates) {
    if (candidate.name == stage.chosen)
      text += fmt::format("  * {:<32} chosen\n", candidate.name);
    else
      text += fmt::format("  - {:<32} {}\n", candidate.name, candidate.reason);
  }
  return text;
}

std::string cost_text(const CostPoint& cost) {
  std::string time = "not measured";
  if (cost.seconds > 0)
    time = fmt::format("{:.1f} us ({})", cost.seconds * 1e6, cost.memory_bound ? "memory" : "compute");
  std::string tiles = cost.tiles;
  if (cost.launches > 0) tiles += fmt::format(", {} launches", cost.launches);
  if (cost.forecast_seconds > 0) tiles += fmt::format(", {:.1f} us expected", cost.forecast_seconds * 1e6);
  return fmt::format("  {:>6} {:>9.1f} {:>12} {:>12} {:>10.3f}  {:<24} {}\n", cost.num_tokens, cost.active_experts,
                     bytes_text(cost.weight_bytes), bytes_text(cost.activation_bytes), cost.flops * 1e-9, time, tiles);
}

std::string routing_text(const MoeConfig& c) {
  std::string text = fmt::format("{} of {}, {}", c.top_k, c.num_experts, name_of(c.routing.method));
  if (c.routing.num_expert_group > 1)
    text += fmt::format(", {} of {} groups", c.routing.topk_group, c.routing.num_expert_group);
  if (c.routing.routed_scaling_factor != 1.0) text += fmt::format(", factor {}", c.routing.routed_scaling_factor);
  if (c.zero_experts > 0) text += fmt::format(", {} zero experts", c.zero_experts);
  return text;
}

}  // namespace

std::string summary_of(const Problem& p) {
  const MoeConfig& c = p.moe;
  std::string text = fmt::format(
      "H {}, I {}, experts {}, {}, weights {}, activations {}", c.hidden_size, c.intermediate_size, routing_text(c),
      name_of(c.activation), p.quant.weights == QuantKey::none ? name_of(c.weight_dtype) : name_of(p.quant.weights),
      p.quant.activations == QuantKey::none ? name_of(c.dtype) : name_of(p.quant.activations));
  if (c.latent_size > 0) text += fmt::format(", latent {}", c.latent_size);
  if (c.shared.intermediate_size > 0) text += fmt::format(", shared expert {}", c.shared.intermediate_size);
  return text;
}

std::string refusal_report(const Plan& plan) {
  std::string text = fmt::format("nothing fits this problem: {}\n", summary_of(plan.problem));
  text += stage_text("router", plan.router);
  text += stage_text("prepare/finalize", plan.prepare_finalize);
  text += stage_text("experts", plan.experts);
  return text;
}

std::vector<std::string> owners_of(const Plan& plan, const FusedMoeKernel& kernel) {
  const MoeConfig& c = plan.problem.moe;
  std::vector<std::string> lines;
  const bool reduced = kernel.experts().output_kind() == ExpertOutputKind::reduced;
  if (c.apply_router_weight_on_input)
    lines.push_back(fmt::format("router weight: {}, on the input", plan.prepare_finalize.chosen));
  else
    lines.push_back(
        fmt::format("router weight and sum over k: {}", reduced ? plan.experts.chosen : plan.prepare_finalize.chosen));
  if (c.routing.routed_scaling_factor != 1.0)
    lines.push_back(fmt::format("routed scaling factor {}: {}", c.routing.routed_scaling_factor,
                                c.routed_scale_on_output ? "layer, on the routed sum" : "router, in the weights"));
  if (c.has_w13_bias || c.has_w2_bias)
    lines.push_back(fmt::format("biases: {}, before the router weight", plan.experts.chosen));
  const ParallelConfig& parallel = plan.problem.parallel;
  if (c.shared.intermediate_size > 0)
    lines.push_back(fmt::format("shared expert: layer, {}{}",
                                parallel.tp_size > 1   ? "a slice on each rank, summed like the routed output"
                                : parallel.ep_size > 1 ? "each rank for its own tokens, added once"
                                                       : "added once",
                                c.shared.sigmoid_gate ? ", sigmoid gate" : ""));
  if (parallel.enable_eplb)
    lines.push_back(fmt::format("replicas: layer, {} slots for {} experts, chosen by each token's own picks",
                                num_slots_of_experts(plan.problem), c.num_weight_experts()));
  if (parallel.tp_size > 1 && c.has_w2_bias) lines.push_back("bias of w2: experts of the first rank");
  if (c.zero_experts > 0) lines.push_back("zero experts: layer, added once");
  const std::int64_t ranks = parallel.tp_size * parallel.ep_size;
  if (ranks > 1)
    lines.push_back(fmt::format(
        "sum over {} ranks: {}", ranks,
        kernel.output_is_reduced() ? "finalize" : "layer with a communicator, in rank order; without one, the caller"));
  return lines;
}

std::string Plan::report() const {
  std::string text = fmt::format("problem: {}\ndevice: {} ({}), {} threads\n", summary_of(problem),
                                 to_string(problem.device.device), problem.device.name, problem.device.num_threads);
  text += stage_text("router", router);
  text += stage_text("prepare/finalize", prepare_finalize);
  text += stage_text("experts", experts);
  if (shared != nullptr)
    text += fmt::format("shared expert: {} with {} ({})\n", shared->experts.chosen, shared->prepare_finalize.chosen,
                        summary_of(shared->problem));
  text += "owners:\n";
  for (const std::string& line : owners) text += "  " + line + "\n";
  if (!problem.notes.empty()) text += "notes:\n";
  for (const std::string& line : problem.notes) text += "  " + line + "\n";
  text += fmt::format("workspace: {} for up to {} tokens\n", bytes_text(static_cast<double>(workspace_bytes)),
                      problem.moe.max_num_tokens);
  if (problem.device.bytes_per_second > 0)
    text += fmt::format("ceilings: {:.1f} GB/s, {:.1f} GFLOP/s f32, {:.1f} GFLOP/s bf16\n",
                        problem.device.bytes_per_second * 1e-9, problem.device.f32_flops * 1e-9,
                        problem.device.bf16_flops * 1e-9);
  if (!costs.empty()) {
    text += fmt::format("roofline:\n  {:>6} {:>9} {:>12} {:>12} {:>10}  {:<24} {}\n", "tokens", "experts", "weights",
                        "activations", "GFLOP", "floor (bound)", "tiles");
    for (const CostPoint& cost : costs) text += cost_text(cost);
  }
  return text;
}

}  // namespace conclave
