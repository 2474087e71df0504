// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Every rank runs the same number of iterations, which the first rank decides; each begins at a barrier and counts as
// long as the slowest rank took.
#include "bench_ranks.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>
#include <optional>

#include "conclave/micro_batches.hpp"
#include "conclave/shard.hpp"
#include "convert.hpp"
#include "timeline.hpp"

namespace conclave::cli {
namespace {

using Clock = std::chrono::steady_clock;

double of_first_rank(Communicator& c, double value) {
  std::vector<double> all(static_cast<std::size_t>(c.size()));
  c.all_gather(&value, sizeof(value), all.data());
  return all[0];
}

/// As measure(), in step.
Timing measure_together(Communicator& c, const TimingOptions& options, std::int64_t num_draws,
                        const std::function<void(std::int64_t)>& body) {
  const auto timed = [&](std::int64_t draw) {
    c.barrier();
    const auto begin = Clock::now();
    body(draw);
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  timed(0);
  const double once = of_first_rank(c, timed(1 % num_draws));
  constexpr double kFewest = 5, kMost = 10'000;
  const double wanted = once > options.max_seconds ? 1 : std::clamp(options.min_seconds / once, kFewest, kMost);
  const auto iterations = static_cast<std::int64_t>(of_first_rank(c, std::ceil(wanted)));
  std::vector<double> mine;
  Timing timing;
  for (std::int64_t i = 0; i < iterations; ++i) {
    timing.draws.push_back((i + 2) % num_draws);
    mine.push_back(timed(timing.draws.back()));
  }
  std::vector<double> all(mine.size() * static_cast<std::size_t>(c.size()));
  c.all_gather(mine.data(), static_cast<std::int64_t>(mine.size() * sizeof(double)), all.data());
  for (std::size_t i = 0; i < mine.size(); ++i)
    for (std::size_t r = 0; r < static_cast<std::size_t>(c.size()); ++r)
      mine[i] = std::max(mine[i], all[r * mine.size() + i]);
  std::sort(mine.begin(), mine.end());
  timing.median_us = 1e6 * 0.5 * (mine[(mine.size() - 1) / 2] + mine[mine.size() / 2]);
  timing.min_us = 1e6 * mine.front();
  timing.max_us = 1e6 * mine.back();
  timing.iterations = iterations;
  return timing;
}

/// The events of all ranks in the first rank's file.
void write_together(Communicator& c, const std::string& path, const Timeline& timeline) {
  const std::string mine = timeline.spans_text(c.rank());
  const auto bytes = static_cast<std::int64_t>(mine.size());
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(c.size()));
  c.all_gather(&bytes, sizeof(bytes), sizes.data());
  std::int64_t total = 0;
  for (const std::int64_t size : sizes) total += size;
  std::string all(static_cast<std::size_t>(total), ' ');
  c.start_all_gather(mine.data(), all.data(), sizes).wait();
  if (c.rank() == 0) write_timelines(path, all);
}

class RankRun {
 public:
  RankRun(const RankBench& bench, Communicator& c, Stream stream) : b_(bench), c_(c), stream_(stream) {
    Problem p = problem_of_rank(b_.problem, b_.pins.prepare_finalize, b_.problem.moe.max_num_tokens, c.size(), c.rank(),
                                Placement::linear);
    exchanges_ = p.parallel.use_all2all();
    if (exchanges_) p.moe.max_num_tokens = (b_.problem.moe.max_num_tokens + c.size() - 1) / c.size();
    LayerWeights own = b_.weights;
    const ShardedWeights sharded = shard_weights(p.moe, b_.weights.experts, p.parallel);
    own.experts = sharded.experts;
    layer_.emplace(plan(p, b_.registry, b_.pins), b_.registry, own, stream, &c);
    if (b_.micro_batches > 1) micro_batches_.emplace(b_.micro_batches);
  }

  RankTimes run() {
    RankTimes result{layer_->plan().experts.chosen, layer_->plan().prepare_finalize.chosen, {}, true};
    for (const std::int64_t num_tokens : b_.tokens) result.times[num_tokens] = run_tokens(num_tokens, result.finite);
    return result;
  }

 private:
  Timing run_tokens(std::int64_t num_tokens, bool& finite) {
    const std::int64_t begin = exchanges_ ? num_tokens * c_.rank() / c_.size() : 0;
    const std::int64_t count = exchanges_ ? num_tokens * (c_.rank() + 1) / c_.size() - begin : num_tokens;
    const ConstTensorView hidden = b_.hidden_states.narrow(0, begin, count);
    const Tensor output = poisoned(hidden.dtype, {count, hidden.size(1)});
    const Draws& draws = b_.draws.at(num_tokens);
    Workspace workspace;
    const auto run = [&](std::int64_t draw, StageObserver* observer) {
      LayerInput input;
      input.hidden_states = hidden;
      input.router_logits = draws.logits.view().at(draw).narrow(0, begin, count);
      input.observer = observer;
      if (micro_batches_)
        run_micro_batched(*layer_, input, output, workspace, stream_, *micro_batches_);
      else
        layer_->run(input, output, workspace, stream_);
    };
    const Timing timing = measure_together(c_, b_.timing, draws.size(), [&](std::int64_t draw) { run(draw, nullptr); });
    if (!b_.trace.empty() && num_tokens == b_.tokens.front()) {
      Timeline timeline;
      c_.barrier();
      run(0, &timeline);
      write_together(c_, b_.trace, timeline);
    }
    const Tensor values = convert(output, DType::f32, "output", *stream_.executor);
    finite = finite && std::all_of(values.as<float>(), values.as<float>() + values.view().numel(),
                                   [](float x) { return std::isfinite(x); });
    return timing;
  }

  const RankBench& b_;
  Communicator& c_;
  Stream stream_;
  bool exchanges_ = false;
  std::optional<MoeLayer> layer_;
  std::optional<MicroBatches> micro_batches_;
};

}  // namespace

RankTimes time_over_ranks(const RankBench& bench, Stream stream) {
  RankTimes result;
  std::mutex mutex;
  bool finite = true;
  bench.ranks.run(stream, [&](Communicator& communicator, Stream own) {
    RankTimes mine = RankRun(bench, communicator, own).run();
    const std::lock_guard lock(mutex);
    finite = finite && mine.finite;
    if (communicator.transport() == "mpi" || communicator.rank() == 0) result = std::move(mine);
  });
  result.finite = finite;
  return result;
}

}  // namespace conclave::cli
