// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: scores of a row on a GPU. Out: ids in the order of the CPU routers, and weights; one launch for all tokens.
#include <memory>

#include "base/error.hpp"
#include "conclave/registry.hpp"
#include "router/check_input.hpp"
#include "router/cuda/topk_kernel.hpp"
#include "router/rule.hpp"
#include "router/supports.hpp"

namespace conclave {
namespace router {
namespace {

class CudaTopk final : public Router {
 public:
  CudaTopk(std::string name, const Problem& problem) : name_(std::move(name)), rule_(problem) {}

  const std::string& name() const noexcept override { return name_; }
  void plan_scratch(Arena&, std::int64_t) const override {}

  void route(const RouterInput& input, const Routing& out, Arena&, Stream stream) const override {
    check_input(rule_, input, out, stream, DeviceType::cuda);
    if (out.topk_ids.size(0) > 0) launch_topk(work_of(input, out), static_cast<cudaStream_t>(stream.native));
  }

 private:
  TopkWork work_of(const RouterInput& input, const Routing& out) const {
    TopkWork w = rule_as_numbers();
    w.logits = input.logits.data;
    w.dtype = input.logits.dtype;
    w.logits_stride = input.logits.stride(0);
    if (rule_.routing.has_bias) w.bias = input.e_score_correction_bias->as<float>();
    if (rule_.routing.hash_table) {
      w.token_ids = input.token_ids->data;
      w.tokens_are_i64 = input.token_ids->dtype == DType::i64;
      w.token_stride = input.token_ids->stride(0);
      w.hash_table = input.hash_table->as<std::int32_t>();
      w.table_stride = input.hash_table->stride(0);
      w.table_rows = input.hash_table->size(0);
    }
    w.ids = out.topk_ids.as<std::int32_t>();
    w.ids_stride = out.topk_ids.stride(0);
    w.weights = out.topk_weights.as<float>();
    w.weights_stride = out.topk_weights.stride(0);
    w.num_tokens = out.topk_ids.size(0);
    return w;
  }

  TopkWork rule_as_numbers() const {
    const RoutingConfig& r = rule_.routing;
    TopkWork w;
    w.num_experts = static_cast<std::int32_t>(rule_.num_experts);
    w.top_k = static_cast<std::int32_t>(rule_.top_k);
    w.num_slots = static_cast<std::int32_t>(rule_.num_slots);
    w.num_groups = static_cast<std::int32_t>(r.num_expert_group);
    w.top_groups = static_cast<std::int32_t>(r.topk_group);
    w.scoring = r.scoring;
    w.group_score = r.group_score;
    w.renormalize = r.renormalize;
    w.ranks_logits = rule_.ranks_logits();
    w.sparsemixer = r.method == RoutingMethod::sparsemixer;
    w.jitter_limit = static_cast<float>(2.0 * r.sparsemixer_jitter);
    w.epsilon = rule_.epsilon;
    w.factor = rule_.factor;
    w.shared_weight = rule_.shared_weight;
    return w;
  }

  std::string name_;
  Rule rule_;
};

Support supports_on_cuda(const Problem& problem) {
  const MoeConfig& c = problem.moe;
  if (const Support rule = supports_rule_on(problem, DeviceType::cuda); !rule) return rule;
  if (c.num_experts > kMostExpertsOnCuda)
    return Support::no(
        fmt::format("num_experts {}, it holds at most {} in registers", c.num_experts, kMostExpertsOnCuda));
  if (c.routing.method == RoutingMethod::custom || c.routing.method == RoutingMethod::simulated)
    return Support::no(fmt::format("method {} runs on the host", name_of(c.routing.method)));
  if (c.checked && c.routing.hash_table)
    return Support::no("checked hash_table routing: the host does not see the table's ids");
  return Support::yes();
}

}  // namespace
}  // namespace router

namespace parts {

Entry<Router> router_cuda_topk();
Entry<Router> router_cuda_topk() {
  const std::string name = "router/cuda_topk";
  return {.name = name,
          .supports = router::supports_on_cuda,
          .make = [name](const PartContext& context) -> std::unique_ptr<Router> {
            return std::make_unique<router::CudaTopk>(name, context.problem);
          }};
}

}  // namespace parts
}  // namespace conclave
