// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Fills a Case and writes it.
#include "record.hpp"

#include "conclave/router.hpp"
#include "error.hpp"

namespace conclave::cli {

void record_case(const std::string& path, const Recording& r, Stream stream) {
  if (stream.device.type != DeviceType::cpu)
    bad_input("--record: given with --device {}, expected cpu: what a case expects is computed there",
              to_string(stream.device));
  const MoeConfig& c = r.plan.problem.moe;
  Case value;
  value.moe = c;
  value.quant = r.plan.problem.quant;
  value.note = r.note;
  value.tolerance = r.tolerance;
  value.hidden_states = r.hidden_states;
  value.weights = r.weights;
  value.weights.router_weight.reset();
  value.weights.router_bias.reset();
  value.router_logits = r.router_logits;
  value.expected = r.expected;
  value.expected_topk_ids = r.expected_topk_ids;
  Tensor logits;
  if (!value.router_logits && r.weights.router_weight) {
    logits = Tensor(DType::f32, {r.hidden_states.size(0), c.num_experts});
    router_logits(r.hidden_states, *r.weights.router_weight, r.weights.router_bias, logits, stream);
    value.router_logits = logits;
    value.moe.router_logits_dtype = DType::f32;
  }
  write_case(path, value);
}

}  // namespace conclave::cli
