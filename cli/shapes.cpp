// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The table: sizes, routing rule and activation as the model's config.json publishes them.
#include "shapes.hpp"

#include <array>
#include <vector>

#include "error.hpp"
#include "parse.hpp"

namespace conclave::cli {
namespace {

using Method = RoutingMethod;

struct Shape {
  std::string_view name;
  std::int64_t num_experts, top_k, hidden_size, intermediate_size;
  Method method;
  std::int64_t shared_size = 0;
  /// What else differs from a plain layer; null: nothing.
  void (*adjust)(MoeConfig&) = nullptr;
};

void gated_shared(MoeConfig& c) {
  c.shared.sigmoid_gate = true;
}

void gpt_oss(MoeConfig& c) {
  c.activation = Activation::swigluoai;
  c.w13_layout = W13Layout::interleaved;
  c.has_w13_bias = c.has_w2_bias = true;
}

void llama4(MoeConfig& c) {
  c.apply_router_weight_on_input = true;
}

void deepseek_v3(MoeConfig& c) {
  c.routing.num_expert_group = 8;
  c.routing.topk_group = 4;
  c.routing.routed_scaling_factor = 2.5;
}

void deepseek_v2(MoeConfig& c) {
  c.routing.num_expert_group = 8;
  c.routing.topk_group = 3;
  c.routing.group_score = GroupScore::max;
  c.routing.routed_scaling_factor = 16.0;
}

void kimi_k2(MoeConfig& c) {
  c.routing.routed_scaling_factor = 2.827;
}

void glm45(MoeConfig& c) {
  c.routing.routed_scaling_factor = 2.5;
}

/// 512 experts with weights and 256 identity experts behind one softmax.
void longcat(MoeConfig& c) {
  c.zero_experts = 256;
  c.routing.has_bias = true;
  c.routing.routed_scaling_factor = 6.0;
}

void nemotron_nano(MoeConfig& c) {
  c.activation = Activation::relu2_no_mul;
  c.routing.routed_scaling_factor = 2.5;
}

constexpr std::array kShapes{
    Shape{"mixtral", 8, 2, 4096, 14336, Method::renormalize},
    Shape{"mixtral-8x22b", 8, 2, 6144, 16384, Method::renormalize},
    Shape{"phi3.5-moe", 16, 2, 4096, 6400, Method::sparsemixer},
    Shape{"dbrx", 16, 4, 6144, 10752, Method::renormalize_naive},
    Shape{"olmoe", 64, 8, 2048, 1024, Method::default_},
    Shape{"qwen1.5-moe", 60, 4, 2048, 1408, Method::default_, 5632, gated_shared},
    Shape{"qwen2-57b", 64, 8, 3584, 2560, Method::default_, 20480, gated_shared},
    Shape{"qwen3-30b", 128, 8, 2048, 768, Method::renormalize_naive},
    Shape{"qwen3-235b", 128, 8, 4096, 1536, Method::renormalize_naive},
    Shape{"qwen3-next", 512, 10, 2048, 512, Method::renormalize_naive, 512, gated_shared},
    Shape{"gpt-oss-20b", 32, 4, 2880, 2880, Method::renormalize, 0, gpt_oss},
    Shape{"gpt-oss-120b", 128, 4, 2880, 2880, Method::renormalize, 0, gpt_oss},
    Shape{"deepseek-v2-lite", 64, 6, 2048, 1408, Method::default_, 2816},
    Shape{"deepseek-v2", 160, 6, 5120, 1536, Method::default_, 3072, deepseek_v2},
    Shape{"deepseek-v3", 256, 8, 7168, 2048, Method::deepseek_v3, 2048, deepseek_v3},
    Shape{"kimi-k2", 384, 8, 7168, 2048, Method::deepseek_v3, 2048, kimi_k2},
    Shape{"glm-4.5", 160, 8, 5120, 1536, Method::deepseek_v3, 1536, glm45},
    Shape{"glm-4.5-air", 128, 8, 4096, 1408, Method::deepseek_v3, 1408},
    Shape{"minimax-m2", 256, 8, 3072, 1536, Method::minimax2},
    Shape{"llama4-scout", 16, 1, 5120, 8192, Method::llama4, 8192, llama4},
    Shape{"llama4-maverick", 128, 1, 5120, 8192, Method::llama4, 8192, llama4},
    Shape{"longcat-flash", 768, 12, 6144, 2048, Method::default_, 0, longcat},
    Shape{"nemotron-3-nano", 128, 6, 2688, 1856, Method::deepseek_v3, 3712, nemotron_nano},
};

MoeConfig config_of(const Shape& shape) {
  MoeConfig c;
  c.num_experts = shape.num_experts;
  c.top_k = shape.top_k;
  c.hidden_size = shape.hidden_size;
  c.intermediate_size = shape.intermediate_size;
  c.routing = routing_preset(shape.method);
  c.shared.intermediate_size = shape.shared_size;
  if (shape.adjust != nullptr) shape.adjust(c);
  return c;
}

}  // namespace

std::string shape_names() {
  std::string names;
  for (const Shape& shape : kShapes) names += (names.empty() ? "" : ", ") + std::string(shape.name);
  return names;
}

MoeConfig config_of_shape(const std::string& text) {
  for (const Shape& shape : kShapes)
    if (shape.name == text) return config_of(shape);
  if (text.find(',') == std::string::npos)
    bad_input("--shape: unknown shape \"{}\"; expected E,k,H,I or one of {}", text, shape_names());
  const std::vector<std::int64_t> sizes = parse_counts("--shape", text);
  if (sizes.size() != 4) bad_input("--shape: given \"{}\", expected four numbers E,k,H,I", text);
  return config_of({"", sizes[0], sizes[1], sizes[2], sizes[3], Method::renormalize});
}

}  // namespace conclave::cli
