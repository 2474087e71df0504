// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The problem as text, its hash exchanged, and the text only where the hashes differ.
#include "kernel/agreement.hpp"

#include <algorithm>
#include <optional>
#include <string_view>

#include "base/error.hpp"

namespace conclave {
namespace {

template <class T>
std::string text_of(const T& value) {
  if constexpr (requires { name_of(value); })
    return std::string(name_of(value));
  else
    return fmt::format("{}", value);
}
std::string text_of(const std::optional<double>& value) {
  return value ? fmt::format("{}", *value) : "default";
}

class Fields {
 public:
  template <class T>
  Fields& add(const char* name, const T& value) {
    list_.push_back({name, text_of(value)});
    return *this;
  }
  std::vector<NamedValue> take() { return std::move(list_); }

 private:
  std::vector<NamedValue> list_;
};

void add_routing(const RoutingConfig& r, Fields& fields) {
  fields.add("routing.method", r.method)
      .add("routing.scoring", r.scoring)
      .add("routing.score_after_topk", r.score_after_topk)
      .add("routing.has_bias", r.has_bias)
      .add("routing.hash_table", r.hash_table)
      .add("routing.num_expert_group", r.num_expert_group)
      .add("routing.topk_group", r.topk_group)
      .add("routing.group_score", r.group_score)
      .add("routing.renormalize", r.renormalize)
      .add("routing.epsilon", r.epsilon)
      .add("routing.routed_scaling_factor", r.routed_scaling_factor)
      .add("routing.num_fused_shared_experts", r.num_fused_shared_experts)
      .add("routing.fused_shared_weight", r.fused_shared_weight)
      .add("routing.sparsemixer_jitter", r.sparsemixer_jitter)
      .add("routing.simulated", r.simulated)
      .add("routing.zipf_exponent", r.zipf_exponent)
      .add("routing.seed", r.seed);
}

void add_moe(const MoeConfig& c, bool cut, Fields& fields) {
  fields.add("num_experts", c.num_experts)
      .add("top_k", c.top_k)
      .add("hidden_size", c.hidden_size)
      .add("latent_size", c.latent_size)
      .add("zero_experts", c.zero_experts)
      .add("max_num_tokens", c.max_num_tokens)
      .add("dtype", c.dtype)
      .add("weight_dtype", c.weight_dtype)
      .add("activation", c.activation)
      .add("activation_params.alpha", c.activation_params.alpha)
      .add("activation_params.beta", c.activation_params.beta)
      .add("activation_params.limit", c.activation_params.limit)
      .add("activation_params.linear_beta", c.activation_params.linear_beta)
      .add("has_w13_bias", c.has_w13_bias)
      .add("has_w2_bias", c.has_w2_bias)
      .add("apply_router_weight_on_input", c.apply_router_weight_on_input)
      .add("routed_scale_on_output", c.routed_scale_on_output)
      .add("shared.sigmoid_gate", c.shared.sigmoid_gate);
  if (cut) return;
  fields.add("intermediate_size", c.intermediate_size).add("shared.intermediate_size", c.shared.intermediate_size);
}

void add_parallel(const ParallelConfig& p, Fields& fields) {
  fields.add("tp_size", p.tp_size)
      .add("pcp_size", p.pcp_size)
      .add("dp_size", p.dp_size)
      .add("ep_size", p.ep_size)
      .add("sp_size", p.sp_size)
      .add("use_ep", p.use_ep)
      .add("enable_eplb", p.enable_eplb)
      .add("num_redundant_experts", p.num_redundant_experts)
      .add("all2all", p.all2all)
      .add("placement", p.placement);
}

/// FNV-1a: equal texts have equal hashes, and that is all that is asked of it.
std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  return hash;
}

std::string joined(const std::vector<NamedValue>& fields) {
  std::string text;
  for (const NamedValue& f : fields) text += f.name + "=" + f.value + "\n";
  return text;
}

std::vector<NamedValue> parsed(std::string_view text) {
  std::vector<NamedValue> fields;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    const std::size_t equals = line.find('=');
    fields.push_back({std::string(line.substr(0, equals)),
                      equals == std::string_view::npos ? std::string() : std::string(line.substr(equals + 1))});
    text.remove_prefix(std::min(text.size(), line.size() + 1));
  }
  return fields;
}

std::string value_of(const std::vector<NamedValue>& fields, const std::string& name) {
  for (const NamedValue& f : fields)
    if (f.name == name) return f.value;
  return "nothing";
}

std::vector<std::string> texts_of_all(Communicator& communicator, const std::string& mine) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(communicator.size()));
  const auto size = static_cast<std::int64_t>(mine.size());
  communicator.all_gather(&size, sizeof(size), sizes.data());
  std::int64_t total = 0;
  for (const std::int64_t s : sizes) total += s;
  std::string all(static_cast<std::size_t>(total), ' ');
  communicator.start_all_gather(mine.data(), all.data(), sizes).wait();
  std::vector<std::string> texts;
  std::size_t at = 0;
  for (const std::int64_t s : sizes) {
    texts.push_back(all.substr(at, static_cast<std::size_t>(s)));
    at += static_cast<std::size_t>(s);
  }
  return texts;
}

/// "top_k: 2 on rank 0, 3 on rank 1; ..."
std::string differences(const std::vector<std::string>& texts) {
  std::vector<std::vector<NamedValue>> all;
  for (const std::string& text : texts) all.push_back(parsed(text));
  std::string report;
  for (const NamedValue& first : all[0])
    for (std::size_t rank = 1; rank < all.size(); ++rank) {
      const std::string other = value_of(all[rank], first.name);
      if (other == first.value) continue;
      report += fmt::format("{}{}: {} on rank 0, {} on rank {}", report.empty() ? "" : "; ", first.name, first.value,
                            other, rank);
      break;
    }
  // A field that rank 0 does not have: the ranks run different versions of this library.
  return report.empty() ? "the lists of fields differ" : report;
}

}  // namespace

std::vector<NamedValue> shared_fields(const Plan& plan) {
  const Problem& p = plan.problem;
  Fields fields;
  add_moe(p.moe, p.parallel.tp_size > 1, fields);
  add_routing(p.moe.routing, fields);
  add_parallel(p.parallel, fields);
  fields.add("w13_layout", p.moe.w13_layout)
      .add("quant.weights", p.quant.weights)
      .add("quant.activations", p.quant.activations)
      .add("prepare_finalize", plan.prepare_finalize.chosen);
  return fields.take();
}

void require_agreement(Communicator& communicator, const Plan& plan) {
  const std::string mine = joined(shared_fields(plan));
  const std::uint64_t hash = hash_of(mine);
  std::vector<std::uint64_t> hashes(static_cast<std::size_t>(communicator.size()));
  communicator.all_gather(&hash, sizeof(hash), hashes.data());
  // All ranks see the same hashes, so all of them take the same branch.
  if (std::all_of(hashes.begin(), hashes.end(), [&](std::uint64_t h) { return h == hashes[0]; })) return;
  fail(ErrorKind::invalid_argument, "ranks disagree about the configuration: {}",
       differences(texts_of_all(communicator, mine)));
}

}  // namespace conclave
