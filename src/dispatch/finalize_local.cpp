// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: what the experts left, and the routing. Out: [M, H], every element written.
#include "dispatch/finalize_local.hpp"

#include "base/error.hpp"

namespace conclave::dispatch {
namespace {

WeightAndReduceKind kind_for(ExpertOutputKind rows) {
  switch (rows) {
    case ExpertOutputKind::unreduced_standard:
      return WeightAndReduceKind::contiguous;
    case ExpertOutputKind::unreduced_batched:
      return WeightAndReduceKind::naive_batched;
    case ExpertOutputKind::reduced:
      return WeightAndReduceKind::no_op;
    case ExpertOutputKind::unfinalized:
      break;
  }
  fail(ErrorKind::invalid_argument, "expert_output: given kind {}, expected rows that finalize can reduce",
       name_of(rows));
}

}  // namespace

void finalize_local(const FinalizeInput& input, const MoeConfig& moe, const TensorView& output, Stream stream) {
  const WeightAndReduceKind fitting = kind_for(input.expert_output.kind);
  require(input.weight_and_reduce != nullptr,
          "weight_and_reduce: given none, expected the kind that the experts named");
  const WeightAndReduceKind named = input.weight_and_reduce->kind();
  require(named == fitting || named == WeightAndReduceKind::delegate,
          "weight_and_reduce: given {} for rows that are {}, expected {}", name_of(named),
          name_of(input.expert_output.kind), name_of(fitting));
  const WeightAndReduce& reduce = named == fitting ? *input.weight_and_reduce : weight_and_reduce(fitting);
  reduce.apply({.rows = input.expert_output.rows,
                .topk_weights = input.routing.topk_weights,
                .topk_ids = input.routing.topk_ids,
                .expert_map = input.expert_map,
                .num_experts = moe.num_weight_experts(),
                .weight_already_applied = input.router_weight_applied},
               output, stream);
}

}  // namespace conclave::dispatch
