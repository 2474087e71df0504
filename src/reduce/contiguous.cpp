// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: rows [M, k, H]. Out: [M, H].
#include "base/error.hpp"
#include "base/slot_lookup.hpp"
#include "base/tensor_format.hpp"
#include "cpu/parallel_for.hpp"
#include "reduce/check.hpp"
#include "reduce/cuda/rows.hpp"
#include "reduce/kinds.hpp"
#include "reduce/weighted_sum.hpp"

namespace conclave::reduce {
namespace {

/// Every slot is as good as another here: rows are indexed by (token, pick), not by slot.
constexpr std::int64_t kAnySlot = INT64_MAX;

class Contiguous final : public WeightAndReduce {
 public:
  WeightAndReduceKind kind() const noexcept override { return WeightAndReduceKind::contiguous; }

  void apply(const ReduceInput& input, const TensorView& output, Stream stream) const override {
    check_weighted(input, output, 3);
    const SlotLookup slot_of(input.topk_ids, input.expert_map, input.num_experts, kAnySlot);
    const std::int64_t top_k = slot_of.top_k();
    require(input.rows.size(0) == slot_of.num_tokens() && input.rows.size(1) == top_k,
            "rows: given {}, expected [{}, {}, hidden_size] as topk_ids", input.rows, slot_of.num_tokens(), top_k);
    if (stream.device.type == DeviceType::cuda) return sum_rows_on_cuda(input, slot_of, output, stream);
    // Columns are cut too, so that all threads have work for a single token.
    const std::int64_t hidden_size = output.size(1);
    const std::int64_t chunks = (hidden_size + kChunk - 1) / kChunk;
    const std::int64_t grain = kProductsWorthThreads / (kChunk * std::max<std::int64_t>(1, top_k));
    cpu::parallel_for(
        *stream.executor, slot_of.num_tokens() * chunks, grain, [&](std::int64_t begin, std::int64_t end, int) {
          for (std::int64_t item = begin; item < end; ++item) {
            const std::int64_t token = item / chunks;
            const std::int64_t h = item % chunks * kChunk;
            weighted_sum(input, output, token, h, std::min(h + kChunk, hidden_size), [&](std::int64_t pick) {
              if (slot_of(token, pick) < 0) return std::int64_t{-1};
              return token * input.rows.stride(0) + pick * input.rows.stride(1);
            });
          }
        });
  }
};

}  // namespace

const WeightAndReduce& contiguous() {
  static const Contiguous object;
  return object;
}

}  // namespace conclave::reduce
