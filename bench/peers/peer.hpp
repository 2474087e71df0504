// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What every peer is given: sizes, a routing drawn anew for each call, and the loop that times it. A peer has
//   void run(const Routing& routing, std::int64_t num_tokens)
// and keeps its weights, its input and its output to itself.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace peer {

struct Sizes {
  std::int64_t num_experts, top_k, hidden_size, intermediate_size;
};

/// ids [num_tokens, top_k], distinct in a row; weights alike.
struct Routing {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

struct Options {
  std::vector<std::int64_t> shape, tokens{1, 8, 64, 512};
  std::string dtype = "f32";
  double min_seconds = 1.0;
  int threads = 0;

  Sizes sizes() const { return {shape[0], shape[1], shape[2], shape[3]}; }
};

inline void add_options(CLI::App& app, Options& o, const std::vector<std::string>& dtypes) {
  app.add_option("--shape", o.shape, "E,k,H,I")->delimiter(',')->expected(4)->required();
  app.add_option("--tokens", o.tokens, "token counts")->delimiter(',');
  app.add_option("--dtype", o.dtype, "type of the weights")->check(CLI::IsMember(dtypes));
  app.add_option("--min-time", o.min_seconds, "seconds for each point");
  app.add_option("--threads", o.threads, "threads; 0: what the library takes by itself");
}

/// Cheap noise in (-1, 1): a bench must not run on zeros.
inline float noise(std::uint64_t& state) {
  state = state * 6364136223846793005ull + 1442695040888963407ull;
  return static_cast<float>(static_cast<std::int64_t>(state >> 33) - (std::int64_t{1} << 30)) /
         static_cast<float>(1 << 30);
}

inline Routing draw(const Sizes& s, std::int64_t num_tokens, std::mt19937_64& bits) {
  Routing routing;
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

/// One JSON line on stdout for each token count.
template <class Peer>
void time_points(const char* name, Peer& moe, const Options& o) {
  using Clock = std::chrono::steady_clock;
  constexpr int kWarmUp = 2;
  for (const std::int64_t num_tokens : o.tokens) {
    std::mt19937_64 bits(1);
    std::vector<double> times;
    double total = 0;
    for (int i = 0; i < kWarmUp || total < o.min_seconds * 1e6 || times.size() < 5; ++i) {
      const Routing routing = draw(o.sizes(), num_tokens, bits);
      const auto begin = Clock::now();
      moe.run(routing, num_tokens);
      const double us = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
      if (i < kWarmUp) continue;
      times.push_back(us);
      total += us;
    }
    std::sort(times.begin(), times.end());
    const nlohmann::json line{{"peer", name},
                              {"dtype", o.dtype},
                              {"tokens", num_tokens},
                              {"median_us", times[times.size() / 2]},
                              {"min_us", times.front()},
                              {"max_us", times.back()},
                              {"iterations", times.size()}};
    std::cout << line.dump() << "\n";
  }
}

}  // namespace peer
