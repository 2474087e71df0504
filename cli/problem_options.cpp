// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Builds the Problem field by field; sizes of one rank come from make_parallel.
#include "problem_options.hpp"

#include "error.hpp"
#include "option_set.hpp"
#include "parse.hpp"
#include "shapes.hpp"

namespace conclave::cli {
namespace {

/// The reference's rule: experts in parallel take all of tp * dp. Given alone, --ep N means N ranks that see the same
/// tokens (tp), or, with a transport, N ranks with tokens of their own (dp).
ParallelConfig parallel_of(const ProblemOptions& o) {
  const All2All all2all = all2all_from_name(o.all2all);
  std::int64_t tp = o.tp, dp = o.dp;
  if (o.ep > 1 && tp == 1 && dp == 1) (all2all == All2All::none ? tp : dp) = o.ep;
  if (o.ep > 1 && o.ep != tp * dp)
    bad_input("--ep: given {}, expected tp * dp = {} (experts in parallel take every rank)", o.ep, tp * dp);
  return make_parallel(tp, 0, 1, 0, dp, 0, 1, o.ep > 1, all2all);
}

std::int64_t cut(const char* field, std::int64_t size, std::int64_t ranks) {
  if (size % ranks != 0) bad_input("{}: {} is not a multiple of the {} tensor-parallel ranks", field, size, ranks);
  return size / ranks;
}

void choose_source(const ProblemOptions& o, SelectedProblem& selected) {
  if (o.model.empty() == o.shape.empty()) bad_input("expected either MODEL or --shape");
  if (!o.shape.empty()) {
    if (!o.block.empty()) bad_input("--block: given \"{}\" with --shape, expected with MODEL", o.block);
    selected.problem.moe = config_of_shape(o.shape);
    selected.label = o.shape;
    return;
  }
  selected.checkpoint.emplace(o.model);
  const auto& blocks = selected.checkpoint->blocks();
  if (blocks.empty()) bad_input("{}: no MoE block in this checkpoint", o.model);
  const BlockInfo& block = o.block.empty() ? blocks.front() : selected.checkpoint->block(o.block);
  selected.block = block.name;
  selected.problem.moe = block.config;
  selected.problem.quant = block.quant;
  selected.label = fmt::format("{} {}", o.model, block.name);
}

}  // namespace

void add_problem_options(OptionSet& options, ProblemOptions& o) {
  options.add("MODEL", o.model, "Checkpoint folder")
      .add("--block", o.block, "MoE block of MODEL; default: the first")
      .add("--shape", o.shape, "E,k,H,I or one of " + shape_names())
      .add("--num-experts", o.num_experts,
           "With --shape: this many experts instead, to fit memory; 0: as the shape says")
      .add("--dtype", o.dtype, "Compute type: f32, bf16 or f16; default: the checkpoint's, bf16 for a shape")
      .add("--weights", o.weights, "Quantisation key of the weights")
      .add("--activations", o.activations, "Quantisation key of the activations")
      .add("--activation", o.activation, "Activation instead of the model's: NAME or NAME:limit=7,alpha=1.7");
}

void add_parallel_options(OptionSet& options, ProblemOptions& o) {
  options.add("--tp", o.tp, "Tensor-parallel ranks")
      .add("--dp", o.dp, "Data-parallel ranks")
      .add("--ep", o.ep, "Expert-parallel ranks: tp * dp, or 1 for none")
      .add("--all2all", o.all2all, "none, allgather_reducescatter, all_to_all or low_latency");
}

SelectedProblem select_problem(const ProblemOptions& o, const Machine& machine) {
  SelectedProblem selected;
  choose_source(o, selected);
  Problem& p = selected.problem;
  p.device = machine.facts;
  if (o.num_experts != 0) {
    if (o.shape.empty()) bad_input("--num-experts: given {} with MODEL, expected with --shape", o.num_experts);
    p.moe.num_experts = o.num_experts;
    selected.label += fmt::format(" with {} experts", o.num_experts);
  }
  if (!o.dtype.empty()) p.moe.dtype = parse_dtype("--dtype", o.dtype);
  if (!o.dtype.empty() && !selected.checkpoint) p.moe.weight_dtype = p.moe.dtype;
  if (!o.weights.empty()) p.quant.weights = quant_key_from_name(o.weights);
  if (!o.activations.empty()) p.quant.activations = quant_key_from_name(o.activations);
  if (!o.activation.empty()) parse_activation(o.activation, p.moe);
  if (!o.routing.empty()) p.moe.routing = routing_preset(routing_method_from_name(o.routing));
  p.parallel = parallel_of(o);
  p.moe.intermediate_size = cut("intermediate_size", p.moe.intermediate_size, p.parallel.tp_size);
  p.moe.shared.intermediate_size = cut("shared expert", p.moe.shared.intermediate_size, p.parallel.tp_size);
  return selected;
}

}  // namespace conclave::cli
