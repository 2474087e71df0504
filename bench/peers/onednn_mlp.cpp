// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The loop of onednn_mlp.hpp over oneDNN 2.6 matmul primitives.
#include "onednn_mlp.hpp"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace peer {
namespace {

using dnnl::memory;
using Dims = memory::dims;

std::uint16_t float_to_bf16(float f) {
  std::uint32_t bits;
  std::memcpy(&bits, &f, sizeof bits);
  return static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

}  // namespace

/// One matrix [k, n] for every expert, and the primitives for the row counts that have been seen.
struct OneDnnMoe::Product {
  dnnl::engine engine;
  dnnl::stream stream;
  memory::data_type type, out_type;
  std::int64_t k, n;
  memory::desc weights_layout;
  std::vector<memory> weights;
  std::map<std::int64_t, dnnl::matmul> by_rows;

  dnnl::matmul::primitive_desc describe(std::int64_t rows, const memory::desc& weight_desc) const {
    const memory::desc in({rows, k}, type, memory::format_tag::ab);
    const memory::desc out({rows, n}, out_type, memory::format_tag::ab);
    return {dnnl::matmul::desc(in, weight_desc, out), engine};
  }

  void init(std::int64_t num_experts, std::uint64_t& seed) {
    // The layout is asked for once, at a row count in the middle of the range, as an engine would do at load.
    const memory::desc any({k, n}, type, memory::format_tag::any);
    weights_layout = describe(32, any).weights_desc();
    std::vector<float> plain(static_cast<std::size_t>(k * n));
    memory source({{k, n}, memory::data_type::f32, memory::format_tag::ab}, engine, plain.data());
    const float scale = 1.0F / std::sqrt(static_cast<float>(k));
    for (std::int64_t e = 0; e < num_experts; ++e) {
      for (float& w : plain) w = noise(seed) * scale;
      weights.emplace_back(weights_layout, engine);
      dnnl::reorder(source, weights.back()).execute(stream, source, weights.back());
      stream.wait();
    }
  }

  void run(std::int64_t expert, std::int64_t rows, void* in, void* out) {
    auto found = by_rows.find(rows);
    if (found == by_rows.end()) found = by_rows.emplace(rows, dnnl::matmul(describe(rows, weights_layout))).first;
    memory source({{rows, k}, type, memory::format_tag::ab}, engine, in);
    memory target({{rows, n}, out_type, memory::format_tag::ab}, engine, out);
    found->second.execute(stream, {{DNNL_ARG_SRC, source},
                                   {DNNL_ARG_WEIGHTS, weights[static_cast<std::size_t>(expert)]},
                                   {DNNL_ARG_DST, target}});
    stream.wait();
  }
};

struct OneDnnMoe::Impl {
  Sizes sizes;
  bool bf16;
  Product gate_up, down;
  std::vector<float> input;
  std::vector<char> rows;
  std::vector<float> gated, products, output;
  std::vector<char> inner;
  std::vector<std::vector<std::int32_t>> pairs;

  std::size_t element() const { return bf16 ? 2 : 4; }
  void store(char* to, std::int64_t i, float x) const {
    if (bf16)
      reinterpret_cast<std::uint16_t*>(to)[i] = float_to_bf16(x);
    else
      reinterpret_cast<float*>(to)[i] = x;
  }
  void gather(const std::vector<std::int32_t>& list);
  void activate(std::int64_t count);
  void scatter(const std::vector<std::int32_t>& list, const Routing& routing);
};

void OneDnnMoe::Impl::gather(const std::vector<std::int32_t>& list) {
  const std::int64_t h = sizes.hidden_size;
  const auto count = static_cast<std::int64_t>(list.size());
#pragma omp parallel for
  for (std::int64_t r = 0; r < count; ++r) {
    const float* from = input.data() + list[static_cast<std::size_t>(r)] / sizes.top_k * h;
    char* to = rows.data() + static_cast<std::size_t>(r * h) * element();
    if (bf16) {
      for (std::int64_t i = 0; i < h; ++i) store(to, i, from[i]);
    } else {
      std::memcpy(to, from, static_cast<std::size_t>(h) * sizeof(float));
    }
  }
}

void OneDnnMoe::Impl::activate(std::int64_t count) {
  const std::int64_t inner_size = sizes.intermediate_size;
#pragma omp parallel for
  for (std::int64_t r = 0; r < count; ++r) {
    const float* g = gated.data() + r * 2 * inner_size;
    const float* u = g + inner_size;
    char* to = inner.data() + static_cast<std::size_t>(r * inner_size) * element();
    for (std::int64_t i = 0; i < inner_size; ++i) store(to, i, g[i] / (1.0F + std::exp(-g[i])) * u[i]);
  }
}

void OneDnnMoe::Impl::scatter(const std::vector<std::int32_t>& list, const Routing& routing) {
  const std::int64_t h = sizes.hidden_size;
  const auto count = static_cast<std::int64_t>(list.size());
#pragma omp parallel for
  for (std::int64_t r = 0; r < count; ++r) {
    const std::int32_t pair = list[static_cast<std::size_t>(r)];
    const float weight = routing.weights[static_cast<std::size_t>(pair)];
    float* to = output.data() + pair / sizes.top_k * h;
    const float* from = products.data() + r * h;
    for (std::int64_t i = 0; i < h; ++i) to[i] += weight * from[i];
  }
}

OneDnnMoe::OneDnnMoe(const Sizes& sizes, bool bf16, std::uint64_t seed) {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const dnnl::stream stream(engine);
  const auto type = bf16 ? memory::data_type::bf16 : memory::data_type::f32;
  const auto f32 = memory::data_type::f32;
  impl_ = std::make_unique<Impl>(
      Impl{sizes,
           bf16,
           {engine, stream, type, f32, sizes.hidden_size, 2 * sizes.intermediate_size, {}, {}, {}},
           {engine, stream, type, f32, sizes.intermediate_size, sizes.hidden_size, {}, {}, {}},
           {},
           {},
           {},
           {},
           {},
           {},
           std::vector<std::vector<std::int32_t>>(static_cast<std::size_t>(sizes.num_experts))});
  impl_->gate_up.init(sizes.num_experts, seed);
  impl_->down.init(sizes.num_experts, seed);
}

OneDnnMoe::~OneDnnMoe() = default;

void OneDnnMoe::run(const Routing& routing, std::int64_t num_tokens) {
  Impl& m = *impl_;
  const auto hidden = static_cast<std::size_t>(m.sizes.hidden_size);
  const auto inner = static_cast<std::size_t>(m.sizes.intermediate_size);
  const auto tokens = static_cast<std::size_t>(num_tokens);
  if (m.input.size() < tokens * hidden) {
    std::uint64_t seed = 7;
    m.input.resize(tokens * hidden);
    for (float& x : m.input) x = noise(seed);
    m.rows.resize(tokens * hidden * m.element());
    m.gated.resize(tokens * 2 * inner);
    m.inner.resize(tokens * inner * m.element());
    m.products.resize(tokens * hidden);
  }
  m.output.assign(tokens * hidden, 0.0F);
  for (auto& list : m.pairs) list.clear();
  for (std::size_t p = 0; p < routing.ids.size(); ++p)
    m.pairs[static_cast<std::size_t>(routing.ids[p])].push_back(static_cast<std::int32_t>(p));
  for (std::size_t e = 0; e < m.pairs.size(); ++e) {
    const auto count = static_cast<std::int64_t>(m.pairs[e].size());
    if (count == 0) continue;
    m.gather(m.pairs[e]);
    m.gate_up.run(static_cast<std::int64_t>(e), count, m.rows.data(), m.gated.data());
    m.activate(count);
    m.down.run(static_cast<std::int64_t>(e), count, m.inner.data(), m.products.data());
    m.scatter(m.pairs[e], routing);
  }
}

}  // namespace peer
