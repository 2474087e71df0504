// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Communicators by name; one layer over ranks.
#include "ranks.hpp"

#include <algorithm>
#include <cstdio>
#include <optional>

#include "conclave/shard.hpp"
#include "convert.hpp"
#include "error.hpp"
#include "option_set.hpp"

namespace conclave::cli {
namespace {

constexpr std::int64_t kMaxSimulated = 64;

All2All exchange_of(const std::string& prepare) {
  for (const All2All all2all : {All2All::all_to_all, All2All::allgather_reducescatter, All2All::low_latency})
    if (prepare == "dispatch/" + std::string(name_of(all2all))) return all2all;
  return All2All::none;
}

/// This rank's rows of what a LayerInput has for each token.
LayerInput rows_of_input(LayerInput input, std::int64_t begin, std::int64_t count) {
  const auto cut = [&](auto& view) { view = view.narrow(0, begin, count); };
  cut(input.hidden_states);
  if (input.router_logits) cut(*input.router_logits);
  if (input.token_ids) cut(*input.token_ids);
  if (input.routing) {
    cut(input.routing->topk_ids);
    cut(input.routing->topk_weights);
  }
  return input;
}

/// The rows of all ranks, on every rank.
Tensor join(Communicator& communicator, const Tensor& mine, const std::vector<std::int64_t>& first) {
  const TensorView view = mine;
  Tensor all(view.dtype, {first.back(), view.size(1)});
  const std::int64_t row = bytes_of(view.dtype, view.size(1));
  std::vector<std::int64_t> bytes;
  for (std::size_t r = 0; r + 1 < first.size(); ++r) bytes.push_back((first[r + 1] - first[r]) * row);
  communicator.start_all_gather(view.data, all.view().data, bytes).wait();
  return all;
}

LayerResult run_rank(Communicator& communicator, const Plan& plan, const Registry& registry,
                     const LayerWeights& weights, const LayerInput& input, Stream stream) {
  const Problem& problem = plan.problem;
  const MoeConfig& c = problem.moe;
  LayerWeights own = weights;
  const ShardedWeights sharded = shard_weights(c, weights.experts, problem.parallel);
  own.experts = sharded.experts;
  MoeLayer layer(plan, registry, own, stream, &communicator);
  const std::int64_t num_rows = input.hidden_states.size(0);
  const bool exchanges = problem.parallel.use_all2all();
  std::vector<std::int64_t> first = split_rows(num_rows, communicator.size());
  const auto rank = static_cast<std::size_t>(communicator.rank());
  const std::int64_t begin = exchanges ? first[rank] : 0;
  const std::int64_t count = exchanges ? first[rank + 1] - begin : num_rows;
  LayerInput mine = rows_of_input(input, begin, count);
  LayerResult result;
  result.output = poisoned(c.dtype, {count, c.hidden_size});
  result.topk_ids = poisoned(DType::i32, {count, c.num_slots()});
  result.topk_weights = poisoned(DType::f32, {count, c.num_slots()});
  if (!mine.routing) mine.captured = Routing{result.topk_ids, result.topk_weights};
  Workspace workspace;
  layer.run(mine, result.output, workspace, stream);
  if (exchanges) {
    result.output = join(communicator, result.output, first);
    if (!mine.routing) {
      result.topk_ids = join(communicator, result.topk_ids, first);
      result.topk_weights = join(communicator, result.topk_weights, first);
    }
  }
  return result;
}

}  // namespace

void add_rank_options(OptionSet& options, RankOptions& ranks) {
  options.add("--ranks", ranks.ranks, "Ranks; default: as many as there are")
      .add("--comm", ranks.comm, "self (one rank), sim (ranks in this process) or mpi (under mpirun)");
}

Ranks::Ranks(const RankOptions& options) {
  if (options.ranks < 0 || options.ranks > kMaxSimulated)
    bad_input("--ranks: given {}, expected 1 to {}", options.ranks, kMaxSimulated);
  if (options.comm == "sim") {
    size_ = static_cast<int>(std::max<std::int64_t>(1, options.ranks));
    return;
  }
  if (options.comm == "mpi")
    communicator_ = make_mpi_communicator();
  else if (options.comm == "self")
    communicator_ = make_self_communicator();
  else
    bad_input("--comm: given \"{}\", expected self, sim or mpi", options.comm);
  size_ = communicator_->size();
  if (options.ranks != 0 && options.ranks != size_)
    bad_input("--ranks: given {}, but --comm {} has {}", options.ranks, options.comm, size_);
}

Ranks::~Ranks() = default;

bool Ranks::is_root() const noexcept {
  return communicator_ == nullptr || communicator_->rank() == 0;
}

bool Ranks::is_mpi() const noexcept {
  return communicator_ != nullptr && communicator_->transport() == "mpi";
}

void Ranks::run(Stream stream, FunctionRef<void(Communicator&, Stream)> body) const {
  if (communicator_ == nullptr) {
    // A thread for each rank: an executor runs one region at a time, so each has its own.
    run_ranks(size_, [&](Communicator& communicator) {
      const auto executor = make_inline_executor();
      body(communicator, Stream::cpu(*executor));
    });
    return;
  }
  if (!is_mpi()) return body(*communicator_, stream);
  try {
    body(*communicator_, stream);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "conclave: rank %d: %s\n", communicator_->rank(), error.what());
    std::fflush(stderr);
    communicator_->abort(error.what());
    throw;
  }
}

ParallelConfig parallel_for(const std::string& prepare, std::int64_t ranks, std::int64_t rank, Placement placement) {
  const All2All all2all = exchange_of(prepare);
  ParallelConfig p = all2all == All2All::none ? make_parallel(ranks, rank, 1, 0, 1, 0, 1, true, all2all)
                                              : make_parallel(1, 0, 1, 0, ranks, rank, 1, true, all2all);
  p.placement = placement;
  return p;
}

std::vector<std::int64_t> split_rows(std::int64_t num_rows, std::int64_t ranks) {
  const auto weight = [&](std::int64_t r) { return ranks >= 3 && r == 1 ? 0 : 1 + r % 3; };
  std::int64_t all = 0, before = 0;
  for (std::int64_t r = 0; r < ranks; ++r) all += weight(r);
  std::vector<std::int64_t> first = {0};
  for (std::int64_t r = 0; r < ranks; ++r) {
    before += weight(r);
    first.push_back(num_rows * before / all);
  }
  return first;
}

std::int64_t largest_share(std::int64_t num_rows, std::int64_t ranks) {
  const std::vector<std::int64_t> first = split_rows(num_rows, ranks);
  std::int64_t largest = 0;
  for (std::size_t r = 0; r + 1 < first.size(); ++r) largest = std::max(largest, first[r + 1] - first[r]);
  return largest;
}

Problem problem_of_rank(const Problem& problem, const std::string& prepare, std::int64_t num_rows, std::int64_t ranks,
                        std::int64_t rank, Placement placement) {
  Problem p = problem;
  p.parallel = parallel_for(prepare, ranks, rank, placement);
  p.moe.max_num_tokens = p.parallel.use_all2all() ? largest_share(num_rows, ranks) : num_rows;
  return p;
}

LayerResult run_on_ranks(const Ranks& ranks, const Problem& problem, const Registry& registry, const PlanOptions& pins,
                         const LayerWeights& weights, const LayerInput& input, Placement placement, Stream stream) {
  LayerResult result;
  ranks.run(stream, [&](Communicator& communicator, Stream own) {
    Problem p = problem_of_rank(problem, pins.prepare_finalize, input.hidden_states.size(0), communicator.size(),
                                communicator.rank(), placement);
    LayerResult mine = run_rank(communicator, plan(p, registry, pins), registry, weights, input, own);
    if (communicator.transport() == "mpi" || communicator.rank() == 0) result = std::move(mine);
  });
  if (input.routing) {
    result.topk_ids = convert_ids(input.routing->topk_ids, "topk_ids");
    result.topk_weights = convert(input.routing->topk_weights, DType::f32, "topk_weights", *stream.executor);
  }
  return result;
}

}  // namespace conclave::cli
