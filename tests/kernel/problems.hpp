// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Small problems that the kernel tests share: sizes all different, most of them odd.
#pragma once

#include "conclave/config.hpp"

namespace conclave::test {

inline Problem small_problem(DType dtype = DType::f32) {
  Problem p;
  p.moe.num_experts = 8;
  p.moe.top_k = 3;
  p.moe.hidden_size = 40;
  p.moe.intermediate_size = 24;
  p.moe.max_num_tokens = 37;
  p.moe.dtype = dtype;
  p.moe.weight_dtype = dtype;
  p.moe.routing = routing_preset(RoutingMethod::renormalize_naive);
  p.device = cpu_facts(2);
  return p;
}

}  // namespace conclave::test
