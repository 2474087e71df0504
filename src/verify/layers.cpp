// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: the registry. Out: rows for whole layers, one for each feature that lies around the kernel, with each experts
// part pinned; and the mistakes that such layers have really made.
#include <fmt/format.h>

#include "conclave/error.hpp"
#include "verify/element.hpp"
#include "verify/layer_run.hpp"
#include "verify/sections.hpp"

namespace conclave::verify_detail {
namespace {

constexpr std::int64_t kTokens = 13;

MoeConfig plain_layer() {
  MoeConfig c;
  c.num_experts = 8;
  c.top_k = 3;
  c.hidden_size = 33;
  c.intermediate_size = 19;
  c.max_num_tokens = 16;
  c.routing = routing_preset(RoutingMethod::renormalize_naive);
  return c;
}

struct Variant {
  std::string_view name;
  void (*apply)(MoeConfig& moe);
  bool quick;
};

constexpr Variant kVariants[] = {
    {"plain", [](MoeConfig&) {}, false},
    {"shared", [](MoeConfig& c) { c.shared.intermediate_size = 11; }, false},
    {"shared sigmoid_gate",
     [](MoeConfig& c) {
       c.shared = {27, true};
       c.w13_layout = W13Layout::up_gate;
     },
     true},
    {"factor folded",
     [](MoeConfig& c) {
       c.routing = routing_preset(RoutingMethod::deepseek_v3);
       c.routing.num_expert_group = 4;
       c.routing.topk_group = 2;
       c.routing.routed_scaling_factor = 2.5;
       c.shared.intermediate_size = 11;
     },
     true},
    {"factor on_output",
     [](MoeConfig& c) {
       c.routing.routed_scaling_factor = 2.5;
       c.routed_scale_on_output = true;
       c.shared.intermediate_size = 11;
     },
     false},
    {"zero_experts", [](MoeConfig& c) { c.zero_experts = 3; }, true},
    {"latent",
     [](MoeConfig& c) {
       c.latent_size = 14;
       c.shared.intermediate_size = 11;
     },
     true},
    {"fused_shared",
     [](MoeConfig& c) {
       c.routing.num_fused_shared_experts = 2;
       c.routing.fused_shared_weight = 0.4;
       c.routing.routed_scaling_factor = 2.5;
     },
     false},
    {"in_place", [](MoeConfig& c) { c.in_place = true; }, false},
    {"hash_table",
     [](MoeConfig& c) {
       c.routing = routing_preset(RoutingMethod::deepseek_v4);
       c.routing.has_bias = false;
       c.routing.hash_table = true;
     },
     false},
    {"weight_on_input",
     [](MoeConfig& c) {
       c.top_k = 1;
       c.routing = routing_preset(RoutingMethod::llama4);
       c.apply_router_weight_on_input = true;
       c.shared.intermediate_size = 11;
     },
     false},
};

/// Changes what the layer is given while the oracle keeps the original. False: not in this layer.
struct LayerMutation {
  std::string_view name;
  bool (*apply)(LayerData& data);
};

bool scale_tensor(LayerData& data, const char* name, double factor) {
  const auto found = data.tensors.find(name);
  if (found == data.tensors.end()) return false;
  const TensorView view = found->second.view;
  for_each_offset(view, [&](std::int64_t offset) { store(view, offset, factor * load(view, offset)); });
  return true;
}

constexpr LayerMutation kLayerMutations[] = {
    {"scaled_shared", [](LayerData& d) { return scale_tensor(d, "shared_w2", 0.4); }},
    {"dropped_shared", [](LayerData& d) { return scale_tensor(d, "shared_w2", 0.0); }},
    {"dropped_shared_gate", [](LayerData& d) { return scale_tensor(d, "shared_gate", 0.0); }},
    {"factor_applied_twice",
     [](LayerData& d) {
       double& factor = d.problem.moe.routing.routed_scaling_factor;
       const bool had = factor != 1.0;
       factor *= factor;
       return had;
     }},
    {"dropped_factor",
     [](LayerData& d) {
       double& factor = d.problem.moe.routing.routed_scaling_factor;
       const bool had = factor != 1.0;
       factor = 1.0;
       return had;
     }},
    {"scaled_fused_shared",
     [](LayerData& d) {
       RoutingConfig& r = d.problem.moe.routing;
       r.fused_shared_weight *= r.routed_scaling_factor;
       return r.num_fused_shared_experts > 0;
     }},
    {"latent_out_scaled", [](LayerData& d) { return scale_tensor(d, "latent_out", 1.1); }},
};

void run_variant(Session& s, const std::string& experts, const std::string& label, const LayerData& data) {
  const double tolerance = tolerance_of(data.problem.moe.dtype);
  const OracleOutput expected = oracle_layer(data);
  Tensor output;
  try {
    output = run_layer(s.registry, experts, data, s.stream);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::unsupported)
      s.reporter.refused(experts, label, error.what());
    else
      s.reporter.add(experts, label, "run", Outcome::failed(std::string("threw: ") + error.what()));
    return;
  }
  s.reporter.add(experts, label, "reference", compare_with_oracle(output, expected, tolerance));
  s.reporter.run(experts, label, "repeat", [&] {
    const Tensor again = run_layer(s.registry, experts, data, s.stream);
    return bitwise_equal(again, output) ? Outcome{} : Outcome::failed("the second run differs");
  });
  for (const LayerMutation& mutation : kLayerMutations) {
    LayerData changed = data.copy();
    if (!mutation.apply(changed)) continue;
    s.reporter.mutation(experts, label, mutation.name, Reporter::guarded([&] {
                          return compare_with_oracle(run_layer(s.registry, experts, changed, s.stream), expected,
                                                     tolerance);
                        }));
  }
}

}  // namespace

void verify_layers(Session& session) {
  std::uint64_t index = 0;
  for (const Variant& variant : kVariants)
    for (const DType dtype : kUnquantised) {
      ++index;
      if (session.options.quick && !(variant.quick && dtype == DType::f32)) continue;
      MoeConfig moe = plain_layer();
      moe.dtype = moe.weight_dtype = dtype;
      variant.apply(moe);
      const std::string label =
          fmt::format("layer {} {} E{} k{} H{} I{} M{}", variant.name, name_of(dtype), moe.num_experts, moe.top_k,
                      moe.hidden_size, moe.intermediate_size, kTokens);
      const LayerData data = make_layer_data(moe, session.device, kTokens, session.seed_of(2, index));
      for (const auto& experts : session.registry.experts.entries()) {
        if (!session.reporter.wants(experts.name, label)) continue;
        run_variant(session, experts.name, label, data);
        session.reporter.finished(experts.name, label);
      }
    }
}

}  // namespace conclave::verify_detail
