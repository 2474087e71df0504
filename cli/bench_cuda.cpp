// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Graph replays between events.
#include "bench_cuda.hpp"

#include <algorithm>

#include "conclave/device.hpp"

namespace conclave::cli {
namespace {

/// Calls in one graph: enough that starting it is a small part, few enough that a replay of the slowest layer is short.
constexpr std::int64_t kCalls = 6;
constexpr std::size_t kFewestReplays = 10;
constexpr std::size_t kMostReplays = 1000;
/// Layers below this get three copies: beyond it a call evicts itself many times over.
constexpr std::int64_t kLargeLayer = 4'000'000'000;

}  // namespace

int weight_copies(std::int64_t bytes) {
  return bytes < kLargeLayer ? 3 : 1;
}

Timing time_on_gpu(std::vector<MoeLayer>& copies, const ConstTensorView& hidden_states, const Draws& draws,
                   const TimingOptions& options, const TensorView& output, Stream stream) {
  const Tensor x(hidden_states.dtype, {hidden_states.size(0), hidden_states.size(1)}, stream.device);
  const Tensor y(output.dtype, {output.size(0), output.size(1)}, stream.device);
  copy(hidden_states, x, stream);
  const std::int64_t calls = std::min(kCalls, draws.size());
  std::vector<Tensor> logits;
  for (std::int64_t d = 0; d < calls; ++d) {
    const ConstTensorView host = draws.logits.view().at(d);
    logits.emplace_back(host.dtype, std::initializer_list<std::int64_t>{host.size(0), host.size(1)}, stream.device);
    copy(host, logits.back(), stream);
  }
  Workspace workspace(stream.device);
  const auto run_all = [&] {
    for (std::int64_t d = 0; d < calls; ++d) {
      LayerInput input;
      input.hidden_states = x;
      input.router_logits = logits[static_cast<std::size_t>(d)];
      copies[static_cast<std::size_t>(d) % copies.size()].run(input, y, workspace, stream);
    }
  };
  // Once without a graph: the workspace grows, and errors name their call.
  run_all();
  synchronize(stream);
  const CudaGraph graph(stream, run_all);
  const auto replay = [&] { return seconds_on(stream, [&] { graph.launch(stream); }) / static_cast<double>(calls); };
  for (int warm = 0; warm < 2; ++warm) replay();
  std::vector<double> seconds;
  double total = 0;
  while (seconds.size() < kMostReplays && (seconds.size() < kFewestReplays || total < options.min_seconds)) {
    seconds.push_back(replay());
    total += seconds.back() * static_cast<double>(calls);
    if (total >= options.max_seconds) break;
  }
  copy(y, output, stream);
  std::sort(seconds.begin(), seconds.end());
  Timing timing;
  timing.median_us = 1e6 * seconds[seconds.size() / 2];
  timing.min_us = 1e6 * seconds.front();
  timing.max_us = 1e6 * seconds.back();
  for (std::int64_t d = 0; d < calls; ++d) timing.draws.push_back(d);
  timing.iterations = calls;
  return timing;
}

}  // namespace conclave::cli
