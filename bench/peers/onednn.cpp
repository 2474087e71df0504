// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Times OneDnnMoe on E,k,H,I for several token counts with fresh uniform routing for each call; one JSON line a point.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "onednn_mlp.hpp"

namespace {

peer::Routing draw(const peer::Sizes& s, std::int64_t num_tokens, std::mt19937_64& bits) {
  peer::Routing routing;
  std::vector<std::int32_t> deck(static_cast<std::size_t>(s.num_experts));
  std::iota(deck.begin(), deck.end(), 0);
  for (std::int64_t m = 0; m < num_tokens; ++m)
    for (std::int64_t j = 0; j < s.top_k; ++j) {
      const auto from = static_cast<std::size_t>(j);
      std::swap(deck[from], deck[from + bits() % (deck.size() - from)]);
      routing.ids.push_back(deck[from]);
      routing.weights.push_back(1.0F / static_cast<float>(s.top_k));
    }
  return routing;
}

double run_once(peer::OneDnnMoe& moe, const peer::Routing& routing, std::int64_t num_tokens, std::vector<float>& out) {
  const auto begin = std::chrono::steady_clock::now();
  moe.run(routing, num_tokens, out);
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

void time_point(peer::OneDnnMoe& moe, const peer::Sizes& s, std::int64_t num_tokens, double min_seconds,
                const std::string& dtype) {
  std::mt19937_64 bits(1);
  std::vector<float> out(static_cast<std::size_t>(num_tokens * s.hidden_size));
  std::vector<double> times;
  double total = 0;
  constexpr int kWarmUp = 2;
  for (int i = 0; i < kWarmUp || total < min_seconds * 1e6 || times.size() < 5; ++i) {
    const double us = run_once(moe, draw(s, num_tokens, bits), num_tokens, out);
    if (i < kWarmUp) continue;
    times.push_back(us);
    total += us;
  }
  std::sort(times.begin(), times.end());
  const nlohmann::json line{{"peer", "onednn"},          {"dtype", dtype},
                            {"tokens", num_tokens},      {"median_us", times[times.size() / 2]},
                            {"min_us", times.front()},   {"max_us", times.back()},
                            {"iterations", times.size()}};
  std::cout << line.dump() << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"oneDNN as an MoE layer: one matmul per expert and matrix"};
  std::vector<std::int64_t> shape, tokens{1, 8, 64, 512};
  std::string dtype = "f32";
  double min_seconds = 1.0;
  app.add_option("--shape", shape, "E,k,H,I")->delimiter(',')->expected(4)->required();
  app.add_option("--tokens", tokens, "token counts")->delimiter(',');
  app.add_option("--dtype", dtype, "f32 or bf16")->check(CLI::IsMember({"f32", "bf16"}));
  app.add_option("--min-time", min_seconds, "seconds for each point");
  CLI11_PARSE(app, argc, argv);
  const peer::Sizes sizes{shape[0], shape[1], shape[2], shape[3]};
  try {
    peer::OneDnnMoe moe(sizes, dtype == "bf16", 1);
    for (std::int64_t t : tokens) time_point(moe, sizes, t, min_seconds, dtype);
  } catch (const dnnl::error& e) {
    std::cerr << "peer_onednn: " << dtype << " on this CPU: " << e.what() << "\n";
    return 1;
  }
  return 0;
}
