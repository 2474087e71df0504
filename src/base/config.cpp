// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Rules that hold for every MoeConfig, whatever part runs it, and the flattening of parallel dimensions.
#include "conclave/config.hpp"

#include "base/error.hpp"

namespace conclave {
namespace {

void require_positive(const char* field, std::int64_t value) {
  require(value > 0, "{}: given {}, expected more than 0", field, value);
}

void validate_routing(const MoeConfig& c) {
  const RoutingConfig& r = c.routing;
  require_positive("num_expert_group", r.num_expert_group);
  require(r.topk_group > 0 && r.topk_group <= r.num_expert_group,
          "topk_group: given {}, expected 1 to num_expert_group {}", r.topk_group, r.num_expert_group);
  if (r.num_expert_group > 1) {
    require(c.num_experts % r.num_expert_group == 0, "num_expert_group: given {}, expected a divisor of num_experts {}",
            r.num_expert_group, c.num_experts);
    const std::int64_t eligible = c.num_experts / r.num_expert_group * r.topk_group;
    require(c.top_k <= eligible, "top_k: given {}, expected at most {} (experts in {} groups)", c.top_k, eligible,
            r.topk_group);
  }
  require(r.epsilon >= 0, "epsilon: given {}, expected 0 or more", r.epsilon);
  require(r.num_fused_shared_experts >= 0, "num_fused_shared_experts: given {}, expected 0 or more",
          r.num_fused_shared_experts);
  require(r.num_fused_shared_experts == 0 || c.zero_experts == 0,
          "num_fused_shared_experts {} and zero_experts {}: their ids would collide, expected one of them to be 0",
          r.num_fused_shared_experts, c.zero_experts);
}

}  // namespace

void validate(const MoeConfig& c) {
  require_positive("num_experts", c.num_experts);
  require(c.top_k > 0 && c.top_k <= c.num_experts, "top_k: given {}, expected 1 to num_experts {}", c.top_k,
          c.num_experts);
  require_positive("hidden_size", c.hidden_size);
  require_positive("intermediate_size", c.intermediate_size);
  require(c.latent_size >= 0, "latent_size: given {}, expected 0 or more", c.latent_size);
  require(c.zero_experts >= 0 && c.zero_experts < c.num_experts,
          "zero_experts: given {}, expected 0 to {} (num_experts - 1)", c.zero_experts, c.num_experts - 1);
  require(c.max_num_tokens >= 0, "max_num_tokens: given {}, expected 0 or more", c.max_num_tokens);
  require(is_compute_dtype(c.dtype), "dtype: given {}, expected f32, bf16 or f16", name_of(c.dtype));
  require(is_compute_dtype(c.router_logits_dtype), "router_logits_dtype: given {}, expected f32, bf16 or f16",
          name_of(c.router_logits_dtype));
  resolve(c.activation, c.activation_params);
  require(is_gated(c.activation) || c.w13_layout == W13Layout::gate_up,
          "w13_layout: given {} for {}, which has no gate; expected gate_up", name_of(c.w13_layout),
          name_of(c.activation));
  require(!c.apply_router_weight_on_input || c.num_slots() == 1,
          "apply_router_weight_on_input: given with {} slots for each token, expected 1 (top_k {}, {} fused shared)",
          c.num_slots(), c.top_k, c.routing.num_fused_shared_experts);
  require(c.shared.intermediate_size >= 0, "shared.intermediate_size: given {}, expected 0 or more",
          c.shared.intermediate_size);
  require(!c.shared.sigmoid_gate || c.shared.intermediate_size > 0,
          "shared.sigmoid_gate: given without a shared expert (shared.intermediate_size 0)");
  require(!c.in_place || c.shared.intermediate_size == 0,
          "in_place: given with a shared expert (intermediate_size {}), which reads the input after it is overwritten",
          c.shared.intermediate_size);
  validate_routing(c);
}

ParallelConfig make_parallel(std::int64_t tp_size, std::int64_t tp_rank, std::int64_t pcp_size, std::int64_t pcp_rank,
                             std::int64_t dp_size, std::int64_t dp_rank, std::int64_t sp_size, bool expert_parallel,
                             All2All all2all) {
  const auto check = [](const char* what, std::int64_t size, std::int64_t rank) {
    require(size > 0, "{}_size: given {}, expected more than 0", what, size);
    require(rank >= 0 && rank < size, "{}_rank: given {}, expected 0 to {}", what, rank, size - 1);
  };
  check("tp", tp_size, tp_rank);
  check("pcp", pcp_size, pcp_rank);
  check("dp", dp_size, dp_rank);
  check("sp", sp_size, 0);
  const std::int64_t flat_size = dp_size * pcp_size * tp_size;
  const std::int64_t flat_rank = dp_rank * pcp_size * tp_size + pcp_rank * tp_size + tp_rank;
  ParallelConfig p;
  p.pcp_size = pcp_size;
  p.pcp_rank = pcp_rank;
  p.dp_size = dp_size;
  p.dp_rank = dp_rank;
  p.sp_size = sp_size;
  p.all2all = all2all;
  p.use_ep = expert_parallel && flat_size > 1;
  (p.use_ep ? p.ep_size : p.tp_size) = flat_size;
  (p.use_ep ? p.ep_rank : p.tp_rank) = flat_rank;
  return p;
}

}  // namespace conclave
