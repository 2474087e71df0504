// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The fast CPU experts alone (no router, no finalize) against what this machine can do at most. Each call has a routing
// of its own, uniform over the experts, so that weights come from memory as they do in a model of many layers.
//   cpu_experts --shape qwen3-30b --tokens 1,8,512 --part bf16
// Out: for each part, shape and token count the best and the median call; the weight bytes that it touched for each
// second, its FLOP/s, both as fractions of the measured ceilings, and the fraction of the floor that is the slower one.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "conclave/ceilings.hpp"
#include "conclave/registry.hpp"

namespace {

using namespace conclave;

struct Shape {
  const char* name;
  std::int64_t experts, top_k, hidden, inner;
};
constexpr Shape kShapes[] = {
    {"mixtral", 8, 2, 4096, 14336}, {"qwen3-30b", 128, 8, 2048, 768}, {"olmoe", 64, 8, 2048, 1024}};

struct Options {
  std::vector<std::string> shapes = {"mixtral", "qwen3-30b", "olmoe"};
  std::vector<std::int64_t> tokens = {1, 8, 64, 512};
  std::string part;
  std::int64_t experts = 0;
  int threads = 0;
  double seconds = 2;
};

/// Values of order 0.01 in any dtype; one random block repeated, because a layer's weights take minutes to draw.
Tensor weights_of(DType dtype, std::int64_t experts, std::int64_t rows, std::int64_t columns) {
  Tensor t(dtype, {experts, rows, columns});
  constexpr std::int64_t kBlock = 65521;
  std::vector<std::uint32_t> block(kBlock);
  std::mt19937 bits(1);
  for (std::uint32_t& word : block) {
    const auto r = static_cast<std::uint32_t>(bits());
    // Sign and mantissa at random, the exponent of 1/128: as f32, or as two bf16 or f16.
    if (dtype == DType::f32) word = (r & 0x807FFFFFu) | 0x3C000000u;
    if (dtype == DType::bf16) word = (r & 0x807F807Fu) | 0x3C003C00u;
    if (dtype == DType::f16) word = (r & 0x83FF83FFu) | 0x20002000u;
  }
  const std::int64_t bytes = t.view().bytes();
  const std::int64_t block_bytes = kBlock * 4;
  for (std::int64_t at = 0; at < bytes; at += block_bytes)
    std::memcpy(t.as<std::byte>() + at, block.data(), static_cast<std::size_t>(std::min(block_bytes, bytes - at)));
  return t;
}

struct Call {
  Tensor ids, weights;
  std::int64_t active = 0;
};

Call draw_call(const Shape& shape, std::int64_t tokens, std::mt19937& bits) {
  Call call{Tensor(DType::i32, {tokens, shape.top_k}), Tensor(DType::f32, {tokens, shape.top_k})};
  std::vector<std::int32_t> deck(static_cast<std::size_t>(shape.experts));
  for (std::size_t e = 0; e < deck.size(); ++e) deck[e] = static_cast<std::int32_t>(e);
  std::set<std::int32_t> seen;
  for (std::int64_t t = 0; t < tokens; ++t) {
    std::shuffle(deck.begin(), deck.end(), bits);
    for (std::int64_t k = 0; k < shape.top_k; ++k) {
      call.ids.as<std::int32_t>()[t * shape.top_k + k] = deck[static_cast<std::size_t>(k)];
      call.weights.as<float>()[t * shape.top_k + k] = 1.0f / static_cast<float>(shape.top_k);
      seen.insert(deck[static_cast<std::size_t>(k)]);
    }
  }
  call.active = static_cast<std::int64_t>(seen.size());
  return call;
}

struct Timing {
  double seconds;
  std::int64_t active;
};

class Bench {
 public:
  Bench(const Entry<Experts>& entry, const Problem& problem, const Shape& shape, Executor& executor)
      : shape_(shape), dtype_(problem.moe.dtype), stream_(Stream::cpu(executor)) {
    const PartContext context{problem, nullptr};
    part_ = entry.make(context);
    const Tensor w13 = weights_of(dtype_, shape.experts, 2 * shape.inner, shape.hidden);
    const Tensor w2 = weights_of(dtype_, shape.experts, shape.hidden, shape.inner);
    ExpertWeights weights;
    weights.w13 = w13;
    weights.w2 = w2;
    weights.give_up = [&](const void* begin, std::int64_t bytes) {
      w13.storage()->discard(begin, bytes);
      w2.storage()->discard(begin, bytes);
    };
    packed_ = part_->pack(weights, stream_);
  }

  std::vector<Timing> run(std::int64_t tokens, double seconds) {
    const Tensor x = weights_of(dtype_, 1, tokens, shape_.hidden);
    Arena measure = Arena::measuring();
    part_->take_buffers(measure, tokens);
    Workspace workspace;
    Arena arena(workspace.region({}, measure.peak()), Device{});
    const ExpertsBuffers buffers = part_->take_buffers(arena, tokens);
    std::mt19937 bits(static_cast<std::uint32_t>(tokens));
    std::vector<Timing> timings;
    double spent = 0;
    for (int call = 0; spent < seconds || call < 4; ++call) {
      const Call routing = draw_call(shape_, tokens, bits);
      ExpertsInput input;
      input.hidden_states = x.view().at(0);
      input.topk_ids = routing.ids;
      input.topk_weights = routing.weights;
      const auto start = std::chrono::steady_clock::now();
      dynamic_cast<const ModularExperts&>(*part_).apply(input, *packed_, buffers, stream_);
      const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
      spent += time.count();
      if (call > 0) timings.push_back({time.count(), routing.active});  // The first touches the workspace's pages.
    }
    return timings;
  }

 private:
  const Shape shape_;
  DType dtype_;
  Stream stream_;
  std::unique_ptr<Experts> part_;
  std::unique_ptr<PackedWeights> packed_;
};

void report(const std::string& part, const Shape& shape, std::int64_t tokens, DType dtype, const CpuCeilings& ceilings,
            std::vector<Timing> timings) {
  const double expert_elements = 3.0 * static_cast<double>(shape.hidden * shape.inner);
  const double flops = 2.0 * expert_elements * static_cast<double>(tokens * shape.top_k);
  // AVX2 parts compute in f32 whatever the dtype; so do the AVX-512 parts without a bf16 unit.
  const bool has_bf16_unit = part.find("amx") != part.npos || part.find("avx512_bf16") != part.npos;
  const double peak = has_bf16_unit ? ceilings.bf16_flops : ceilings.f32_flops;
  const auto bytes = [&](const Timing& t) {
    return expert_elements * static_cast<double>(t.active) * bits_of(dtype) / 8;
  };
  const auto floor = [&](const Timing& t) { return std::max(bytes(t) / ceilings.read_bytes_per_second, flops / peak); };
  std::sort(timings.begin(), timings.end(),
            [&](const Timing& a, const Timing& b) { return a.seconds / floor(a) < b.seconds / floor(b); });
  const Timing best = timings.front();
  const Timing median = timings[timings.size() / 2];
  std::printf(
      "%-24s %-9s %4ld tokens  best %9.1f us (%5.1f GB/s %5.1f %%, %7.1f GFLOP/s %5.1f %%)  of floor %5.1f %%, "
      "median %9.1f us %5.1f %%\n",
      part.substr(8).c_str(), shape.name, static_cast<long>(tokens), best.seconds * 1e6,
      bytes(best) / best.seconds * 1e-9, 100 * bytes(best) / best.seconds / ceilings.read_bytes_per_second,
      flops / best.seconds * 1e-9, 100 * flops / best.seconds / peak, 100 * floor(best) / best.seconds,
      median.seconds * 1e6, 100 * floor(median) / median.seconds);
  std::fflush(stdout);
}

void run(const Options& options) {
  const auto executor = make_executor(options.threads);
  const CpuCeilings ceilings = measure_cpu_ceilings(*executor);
  std::printf("%d threads: read %.1f GB/s, f32 %.1f, bf16 %.1f, f16 %.1f GFLOP/s\n", executor->num_threads(),
              ceilings.read_bytes_per_second * 1e-9, ceilings.f32_flops * 1e-9, ceilings.bf16_flops * 1e-9,
              ceilings.f16_flops * 1e-9);
  const Registry registry = builtin_registry();
  for (const std::string& name : options.shapes) {
    Shape shape = *std::find_if(std::begin(kShapes), std::end(kShapes), [&](const Shape& s) { return s.name == name; });
    if (options.experts > 0) shape.experts = options.experts;
    for (const Entry<Experts>& entry : registry.experts.entries()) {
      if (entry.name.rfind("experts/cpu_", 0) != 0 || entry.name.find(options.part) == std::string::npos) continue;
      Problem problem;
      problem.moe.num_experts = shape.experts;
      problem.moe.top_k = shape.top_k;
      problem.moe.hidden_size = shape.hidden;
      problem.moe.intermediate_size = shape.inner;
      problem.device = cpu_facts(executor->num_threads());
      for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        problem.moe.dtype = problem.moe.weight_dtype = dtype;
        if (!entry.supports(problem)) continue;
        Bench bench(entry, problem, shape, *executor);
        for (std::int64_t tokens : options.tokens)
          report(entry.name, shape, tokens, dtype, ceilings, bench.run(tokens, options.seconds));
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times the fast CPU experts against the machine's ceilings");
  Options options;
  app.add_option("--shape", options.shapes, "mixtral, qwen3-30b or olmoe")
      ->delimiter(',')
      ->check(CLI::IsMember({"mixtral", "qwen3-30b", "olmoe"}));
  app.add_option("--tokens", options.tokens, "Token counts")->delimiter(',');
  app.add_option("--part", options.part, "Only parts whose name contains this");
  app.add_option("--experts", options.experts, "Experts instead of the shape's, where memory is short");
  app.add_option("--threads", options.threads, "0: every CPU");
  app.add_option("--seconds", options.seconds, "For each line");
  CLI11_PARSE(app, argc, argv);
  run(options);
  return 0;
}
