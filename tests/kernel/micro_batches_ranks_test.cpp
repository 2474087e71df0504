// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Micro-batches over ranks that really exchange tokens: the bits of the whole batch, and data of one part under way
// while another part computes.
#include <gtest/gtest.h>

#include <mutex>
#include <vector>

#include "conclave/comm.hpp"
#include "conclave/micro_batches.hpp"
#include "conclave/shard.hpp"
#include "kernel/layer_fixture.hpp"

namespace conclave {
namespace {

class SpanList final : public StageObserver {
 public:
  void on_span(const StageSpan& span) noexcept override { spans.push_back(span); }
  std::vector<StageSpan> spans;
};

/// Experts of one micro-batch inside the flight of another's data.
bool overlaps(const std::vector<StageSpan>& spans) {
  for (const StageSpan& data : spans)
    for (const StageSpan& work : spans)
      if (data.in_flight && !work.in_flight && std::string_view(work.stage) == "experts" &&
          work.micro_batch != data.micro_batch && data.begin < work.begin && work.end < data.end)
        return true;
  return false;
}

struct RankOutputs {
  Tensor whole, parts;
  bool overlapped = false;
};

RankOutputs run_rank(Communicator& comm, All2All all2all, int micro_batches, std::int64_t num_tokens) {
  Problem p = test::small_problem();
  p.moe.num_experts = 7;
  p.moe.shared.intermediate_size = 12;
  const test::LayerTensors tensors = test::random_layer(p, 3);
  p.parallel = make_parallel(1, 0, 1, 0, comm.size(), comm.rank(), 1, true, all2all);
  const ShardedWeights cut = shard_weights(p.moe, tensors.weights.experts, p.parallel);
  LayerWeights weights = tensors.weights;
  weights.experts = cut.experts;
  const auto executor = make_inline_executor();
  const Stream stream = Stream::cpu(*executor);
  const Registry registry = builtin_registry();
  MoeLayer layer(plan(p, registry), registry, weights, stream, &comm);
  const Tensor x =
      test::random_tensor(DType::f32, {num_tokens, p.moe.hidden_size}, 50 + static_cast<std::uint64_t>(comm.rank()));

  RankOutputs out{test::poisoned_tensor(DType::f32, {num_tokens, p.moe.hidden_size}),
                  test::poisoned_tensor(DType::f32, {num_tokens, p.moe.hidden_size})};
  Workspace workspace;
  SpanList spans;
  LayerInput input;
  input.hidden_states = x;
  layer.run(input, out.whole, workspace, stream);
  input.observer = &spans;
  MicroBatches batches(micro_batches);
  run_micro_batched(layer, input, out.parts, workspace, stream, batches);
  out.overlapped = overlaps(spans.spans);
  return out;
}

TEST(MicroBatchesOverRanks, HaveTheBitsOfTheWholeBatchAndOverlap) {
  for (const All2All all2all : {All2All::allgather_reducescatter, All2All::all_to_all, All2All::low_latency})
    for (const int ranks : {2, 3})
      for (const int micro_batches : {2, 3}) {
        std::mutex mutex;
        run_ranks(ranks, [&](Communicator& comm) {
          // The last rank has fewer tokens than there are parts.
          const std::int64_t num_tokens = comm.rank() + 1 == ranks ? 1 : 9 + comm.rank();
          const RankOutputs out = run_rank(comm, all2all, micro_batches, num_tokens);
          const std::lock_guard lock(mutex);
          EXPECT_TRUE(test::same_bytes(out.parts, out.whole))
              << name_of(all2all) << ", rank " << comm.rank() << " of " << ranks << ", parts " << micro_batches;
          EXPECT_TRUE(out.overlapped) << name_of(all2all);
        });
      }
}

}  // namespace
}  // namespace conclave
