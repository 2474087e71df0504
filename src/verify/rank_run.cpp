// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The runs of rank_run.hpp: a thread for each rank, each with an executor of its own, memory poisoned.
#include "verify/rank_run.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "conclave/kernel.hpp"
#include "conclave/micro_batches.hpp"
#include "conclave/shard.hpp"
#include "conclave/tail.hpp"
#include "verify/element.hpp"

namespace conclave::verify_detail {
namespace {

constexpr int kMostRanks = 8;

Arena arena_in(const Tensor& memory) {
  poison(memory);
  return Arena({memory.as<std::byte>(), static_cast<std::size_t>(memory.view().bytes())}, Device{});
}

template <class F>
Tensor memory_for(F&& take) {
  Arena measure = Arena::measuring(Device{});
  take(measure);
  return Tensor(DType::u8, {std::max<std::int64_t>(measure.peak(), 1)});
}

std::int64_t largest_share(const std::vector<std::int64_t>& first) {
  std::int64_t most = 1;
  for (std::size_t r = 0; r + 1 < first.size(); ++r) most = std::max(most, first[r + 1] - first[r]);
  return most;
}

ParallelConfig require_parallel(const Entry<PrepareFinalize>& ends, const Problem& problem, int num_ranks, int rank) {
  const std::optional<ParallelConfig> parallel = parallel_over(ends, problem, num_ranks, rank);
  if (!parallel) fail(ErrorKind::unsupported, "verify: {} has no use over {} ranks", ends.name, num_ranks);
  return *parallel;
}

/// One rank of a layer.
class RankLayer {
 public:
  RankLayer(Communicator& c, const Registry& registry, const std::string& experts, const Entry<PrepareFinalize>& ends,
            const LayerData& data)
      : executor_(make_inline_executor()), first_(split_tokens(data.hidden_states.view.size(0), c.size())) {
    Problem p = data.problem;
    p.parallel = require_parallel(ends, p, c.size(), c.rank());
    exchanges_ = p.parallel.use_all2all();
    if (exchanges_) p.moe.max_num_tokens = largest_share(first_);
    begin_ = exchanges_ ? first_[static_cast<std::size_t>(c.rank())] : 0;
    count_ = exchanges_ ? first_[static_cast<std::size_t>(c.rank()) + 1] - begin_ : data.hidden_states.view.size(0);
    LayerWeights weights = data.weights();
    shard_ = shard_weights(p.moe, weights.experts, p.parallel);
    weights.experts = shard_.experts;
    PlanOptions options;
    options.experts = experts;
    options.prepare_finalize = ends.name;
    options.report_tokens.clear();
    layer_ = std::make_unique<MoeLayer>(plan(p, registry, options), registry, weights, stream(), &c);
    input_ = data.input();
    hidden_states_ = clone(input_.hidden_states.narrow(0, begin_, count_));
    input_.hidden_states = hidden_states_.view();
    input_.router_logits = input_.router_logits->narrow(0, begin_, count_);
    if (input_.token_ids) input_.token_ids = input_.token_ids->narrow(0, begin_, count_);
  }

  MoeLayer& layer() noexcept { return *layer_; }
  const LayerInput& input() const noexcept { return input_; }
  Stream stream() const { return Stream::cpu(*executor_); }
  std::int64_t begin() const noexcept { return begin_; }
  std::int64_t count() const noexcept { return count_; }
  bool exchanges() const noexcept { return exchanges_; }

 private:
  std::unique_ptr<Executor> executor_;
  std::vector<std::int64_t> first_;
  std::int64_t begin_ = 0, count_ = 0;
  bool exchanges_ = false;
  ShardedWeights shard_;
  std::unique_ptr<MoeLayer> layer_;
  Tensor
      hidden_states_;  // Its own, as on a machine of its own: a part that writes to it must not race with the others.
  LayerInput input_;
};

/// As run_micro_batched(), but all of them read the rows of the first.
void run_rows_of_sibling(MoeLayer& layer, const LayerInput& input, const TensorView& output, Workspace& workspace,
                         Stream stream, MicroBatches& batches) {
  const std::int64_t share = input.hidden_states.size(0) / batches.count();
  batches.run([&](int id) {
    const std::int64_t count =
        id + 1 < batches.count() ? share : input.hidden_states.size(0) - share * (batches.count() - 1);
    LayerInput part = input;
    part.hidden_states = input.hidden_states.narrow(0, 0, count);
    part.router_logits = input.router_logits->narrow(0, 0, count);
    layer.run(part, output.narrow(0, id * share, count), workspace, stream, {id, 0});
  });
}

/// A part under test may write past its scratch, which the check of buffers reports. Here that must not hit memory of
/// somebody else's.
constexpr std::int64_t kSlackBytes = kWorkspaceAlignment;

void run_layer_rows(RankLayer& rank, const TensorView& output, const LayerRankOptions& options) {
  Workspace workspace;
  if (options.micro_batches < 2) {
    workspace.region({}, rank.layer().plan().workspace_bytes + kSlackBytes);
    workspace.poison();
    return rank.layer().run(rank.input(), output, workspace, rank.stream());
  }
  for (int id = 0; id < options.micro_batches; ++id)
    workspace.region({id, 0}, rank.layer().plan().workspace_bytes + kSlackBytes);
  MicroBatches batches(options.micro_batches);
  if (options.rows_of_sibling)
    run_rows_of_sibling(rank.layer(), rank.input(), output, workspace, rank.stream(), batches);
  else
    run_micro_batched(rank.layer(), rank.input(), output, workspace, rank.stream(), batches);
}

}  // namespace

std::optional<ParallelConfig> parallel_over(const Entry<PrepareFinalize>& ends, const Problem& problem, int num_ranks,
                                            int rank) {
  Problem p = problem;
  for (const All2All all2all :
       {All2All::none, All2All::all_to_all, All2All::allgather_reducescatter, All2All::low_latency}) {
    p.parallel = all2all == All2All::none ? make_parallel(num_ranks, rank, 1, 0, 1, 0, 1, true, all2all)
                                          : make_parallel(1, 0, 1, 0, num_ranks, rank, 1, true, all2all);
    if (ends.supports(p)) return p.parallel;
  }
  return std::nullopt;
}

std::vector<std::int64_t> split_tokens(std::int64_t num_tokens, int num_ranks) {
  const auto weight = [&](int r) { return num_ranks >= 3 && r == 1 ? 0 : 1 + r % 2; };
  std::int64_t all = 0, before = 0;
  for (int r = 0; r < num_ranks; ++r) all += weight(r);
  std::vector<std::int64_t> first = {0};
  for (int r = 0; r < num_ranks; ++r) first.push_back(num_tokens * (before += weight(r)) / all);
  return first;
}

Tensor run_kernels_over_ranks(const Entry<Experts>& experts, const Entry<PrepareFinalize>& ends,
                              const ProblemData& data, int num_ranks, const RankMistake& mistake) {
  require(num_ranks >= 1 && num_ranks <= kMostRanks, "verify: {} ranks, expected 1 to {}", num_ranks, kMostRanks);
  const std::vector<std::int64_t> first = split_tokens(data.num_tokens(), num_ranks);
  Tensor output(data.problem.moe.dtype, {data.num_tokens(), data.problem.moe.hidden_size});
  poison(output);
  run_ranks(num_ranks, [&](Communicator& c) {
    const auto executor = make_inline_executor();
    const Stream stream = Stream::cpu(*executor);
    Problem p = data.problem;
    p.moe.max_num_tokens = largest_share(first);
    p.parallel = require_parallel(ends, p, num_ranks, c.rank());
    const PartContext context{p, nullptr, &c};
    FusedMoeKernel kernel(p, ends.make(context), experts.make(context));
    ParallelConfig held = p.parallel;
    held.placement = mistake.placement_of_weights.value_or(held.placement);
    const ShardedWeights shard = shard_weights(p.moe, data.weights(), held);
    const auto packed = kernel.experts().pack(shard.experts, stream);
    const Tensor map = expert_map_tensor(p.moe, p.parallel);
    const auto r = static_cast<std::size_t>(c.rank());
    const std::int64_t begin = first[r], count = first[r + 1] - begin;
    const Tensor hidden_states = clone(data.hidden_states.view.narrow(0, begin, count));  // As in RankLayer.
    KernelInput input;
    input.hidden_states = hidden_states.view();
    input.routing = Routing{data.topk_ids.view.narrow(0, begin, count), data.topk_weights.view.narrow(0, begin, count)};
    input.expert_map = map.view();
    const Tensor memory = memory_for([&](Arena& arena) { kernel.plan_scratch(arena, count); });
    Arena arena = arena_in(memory);
    kernel.run(input, *packed, output.view().narrow(0, begin, count), arena, stream);
  });
  return output;
}

Tensor run_layers_over_ranks(const Registry& registry, const std::string& experts, const Entry<PrepareFinalize>& ends,
                             const LayerData& data, int num_ranks, const LayerRankOptions& options) {
  const std::int64_t hidden_size = data.problem.moe.hidden_size;
  Tensor output(data.problem.moe.dtype, {data.hidden_states.view.size(0), hidden_size});
  poison(output);
  run_ranks(num_ranks, [&](Communicator& c) {
    RankLayer rank(c, registry, experts, ends, data);
    Tensor own(data.problem.moe.dtype, {rank.count(), hidden_size});
    poison(own);
    run_layer_rows(rank, own, options);
    if (!rank.exchanges() && c.rank() != 0) return;
    const TensorView to = output.view().narrow(0, rank.begin(), rank.count());
    std::copy_n(own.as<std::byte>(), own.view().bytes(), to.as<std::byte>());
  });
  return output;
}

Tensor run_tails_over_ranks(const Registry& registry, const std::string& experts, const Entry<PrepareFinalize>& ends,
                            const LayerData& data, int num_ranks, const ConstTensorView& weight,
                            const TailMistakes& mistakes) {
  const std::int64_t num_tokens = data.hidden_states.view.size(0), hidden_size = data.problem.moe.hidden_size;
  Tensor result(DType::f32, {num_tokens, hidden_size});
  Tensor shared;  // Of the rank that owns it, for those that should not have it.
  run_ranks(num_ranks, [&](Communicator& c) {
    RankLayer rank(c, registry, experts, ends, data);
    Workspace workspace;
    workspace.region({}, rank.layer().open_workspace_bytes() + kSlackBytes);
    workspace.poison();
    TailInput input;
    input.moe = rank.layer().run_open(rank.input(), workspace, rank.stream());
    if (c.rank() == 0 && input.moe.shared_output) shared = clone(*input.moe.shared_output);
    c.barrier();
    if (mistakes.shared_on_every_rank && shared) input.moe.shared_output = shared.view();
    if (mistakes.scale_twice) input.moe.routed_scaling_factor *= input.moe.routed_scaling_factor;
    Tensor zeros;
    if (mistakes.dropped_rank == c.rank()) {
      zeros = Tensor(DType::f32, {num_tokens, hidden_size});
      std::fill_n(zeros.as<float>(), zeros.view().numel(), 0.0f);
      input.moe.unfinalized.reset();
      input.moe.routed = zeros.view();
    }
    if (!mistakes.no_residual) input.residual = data.hidden_states.view;
    input.norm_weight = weight;
    const Tensor memory = memory_for([&](Arena& a) {
      CommunicatorAllReduce::plan_scratch(c, a, num_tokens, hidden_size);
      plan_tail_scratch(a, num_tokens, hidden_size);
    });
    Arena arena = arena_in(memory);
    const CommunicatorAllReduce sum(c, arena, num_tokens, hidden_size);
    const AllReduceInPlace all_reduce(sum);
    input.all_reduce = &all_reduce;
    Tensor normed(DType::f32, {num_tokens, hidden_size});
    poison(normed);
    TailOutput output;
    output.normed = normed.view();
    run_tail({}, input, output, arena, rank.stream());
    if (c.rank() == 0) result = std::move(normed);
  });
  return result;
}

}  // namespace conclave::verify_detail
