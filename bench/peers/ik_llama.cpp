// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// ik_llama.cpp's own MoE operators on E,k,H,I: fused up-gate-SiLU, down, and weighted sum, as one ggml graph for each
// token count. Its weights are repacked where it has a packed form for this CPU. One JSON line a point.
#include <ggml.h>
#include <iqk/iqk_quantize.h>

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <thread>

#include "peer.hpp"

namespace {

using Context = std::unique_ptr<ggml_context, void (*)(ggml_context*)>;

Context make_context(std::int64_t bytes) {
  return {ggml_init({.mem_size = static_cast<std::size_t>(bytes), .mem_buffer = nullptr, .no_alloc = false}),
          ggml_free};
}

/// Random weights [E][rows][columns] in `type`, as the library would have them after loading.
ggml_tensor* make_weights(ggml_context* context, ggml_type type, std::int64_t columns, std::int64_t rows,
                          std::int64_t num_experts, std::uint64_t& seed) {
  ggml_tensor* w = ggml_new_tensor_3d(context, type, columns, rows, num_experts);
  const float scale = 1.0F / std::sqrt(static_cast<float>(columns));
  std::vector<float> row(static_cast<std::size_t>(columns));
  for (std::int64_t r = 0; r < rows * num_experts; ++r) {
    for (float& x : row) x = peer::noise(seed) * scale;
    char* to = static_cast<char*>(w->data) + static_cast<std::size_t>(r) * w->nb[1];
    if (type == GGML_TYPE_F32)
      std::memcpy(to, row.data(), row.size() * sizeof(float));
    else if (type == GGML_TYPE_BF16)
      ggml_fp32_to_bf16_row(row.data(), reinterpret_cast<ggml_bf16_t*>(to), columns);
    else
      ggml_fp32_to_fp16_row(row.data(), reinterpret_cast<ggml_fp16_t*>(to), columns);
  }
  return w;
}

class IkMoe {
 public:
  IkMoe(const peer::Sizes& sizes, ggml_type type, bool repack, int threads)
      : sizes_(sizes), threads_(threads), weights_(make_context(weight_bytes(sizes, type))) {
    std::uint64_t seed = 1;
    const auto [e, k, h, i] = sizes;
    up_ = make_weights(weights_.get(), type, h, i, e, seed);
    gate_ = make_weights(weights_.get(), type, h, i, e, seed);
    down_ = make_weights(weights_.get(), type, i, h, e, seed);
    if (repack)
      for (ggml_tensor* w : {up_, gate_, down_}) iqk_repack_tensor(w);
  }
  const char* type_name() const { return ggml_type_name(down_->type); }

  void run(const peer::Routing& routing, std::int64_t num_tokens) {
    Graph& g = graphs_.try_emplace(num_tokens).first->second;
    if (g.graph == nullptr) build(g, num_tokens);
    std::memcpy(g.ids->data, routing.ids.data(), routing.ids.size() * sizeof(std::int32_t));
    std::memcpy(g.weights->data, routing.weights.data(), routing.weights.size() * sizeof(float));
    ggml_graph_compute(g.graph, &g.plan);
  }

 private:
  struct Graph {
    Context context{nullptr, ggml_free};
    ggml_cgraph* graph = nullptr;
    ggml_tensor* ids = nullptr;
    ggml_tensor* weights = nullptr;
    ggml_cplan plan{};
    std::vector<std::uint8_t> work;
  };

  static std::int64_t weight_bytes(const peer::Sizes& s, ggml_type type) {
    constexpr std::int64_t kOverhead = 16 << 20;
    const auto element = static_cast<std::int64_t>(ggml_type_size(type));
    return 3 * s.num_experts * s.hidden_size * s.intermediate_size * element + kOverhead;
  }

  void build(Graph& g, std::int64_t num_tokens) {
    const auto [e, k, h, i] = sizes_;
    constexpr std::int64_t kOverhead = 64 << 20;
    g.context = make_context(4 * num_tokens * (2 * h + k * (i + h + 2)) + kOverhead);
    ggml_context* c = g.context.get();
    ggml_tensor* x = ggml_new_tensor_3d(c, GGML_TYPE_F32, h, 1, num_tokens);
    std::uint64_t seed = 7;
    for (std::int64_t n = 0; n < h * num_tokens; ++n) static_cast<float*>(x->data)[n] = peer::noise(seed);
    g.ids = ggml_new_tensor_2d(c, GGML_TYPE_I32, k, num_tokens);
    g.weights = ggml_new_tensor_3d(c, GGML_TYPE_F32, 1, k, num_tokens);
    ggml_tensor* inner = ggml_moe_up_gate(c, up_, gate_, x, g.ids, GGML_UNARY_OP_SILU);
    ggml_tensor* rows = ggml_mul_mat_id(c, down_, inner, g.ids);
    g.graph = ggml_new_graph(c);
    ggml_build_forward_expand(g.graph, ggml_mul_multi_add(c, rows, g.weights));
    g.plan = ggml_graph_plan(g.graph, threads_);
    g.work.resize(g.plan.work_size);
    g.plan.work_data = g.work.data();
  }

  peer::Sizes sizes_;
  int threads_;
  Context weights_;
  ggml_tensor* up_ = nullptr;
  ggml_tensor* gate_ = nullptr;
  ggml_tensor* down_ = nullptr;
  std::map<std::int64_t, Graph> graphs_;
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"The MoE operators of ik_llama.cpp"};
  peer::Options options;
  bool repack = false;
  peer::add_options(app, options, {"f32", "bf16", "f16"});
  app.add_flag("--repack", repack, "repack the weights, where this CPU has a packed form of their type");
  CLI11_PARSE(app, argc, argv);
  const int threads = options.threads > 0 ? options.threads : static_cast<int>(std::thread::hardware_concurrency());
  const ggml_type type = options.dtype == "f32"    ? GGML_TYPE_F32
                         : options.dtype == "bf16" ? GGML_TYPE_BF16
                                                   : GGML_TYPE_F16;
  IkMoe moe(options.sizes(), type, repack, threads);
  std::cerr << "peer_ik_llama: weights as " << moe.type_name() << ", " << threads << " threads\n";
  peer::time_points("ik_llama.cpp", moe, options);
  return 0;
}
