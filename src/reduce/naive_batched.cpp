// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: rows [E_local, T, H]; the rows of an expert are the tokens that picked it, each once, in token order.
// Out: [M, H]. A token that names an expert twice has one row there and adds it twice.
#include <array>

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

/// The counters live on the stack because run() never allocates: 32 KiB, four times the experts of any published model.
constexpr std::int64_t kMaxLocalExperts = 8192;

/// Which row each expert gives to the current token: how many earlier tokens picked it.
class RowCounters {
 public:
  explicit RowCounters(const SlotLookup& slot_of) : slot_of_(slot_of) { next_.fill(0); }

  std::int64_t row(std::int64_t slot) const { return next_[static_cast<std::size_t>(slot)]; }

  void pass(std::int64_t token) {
    for (std::int64_t pick = 0; pick < slot_of_.top_k(); ++pick) {
      const std::int64_t slot = slot_of_(token, pick);
      if (slot >= 0 && slot_of_.is_first(token, pick, slot)) ++next_[static_cast<std::size_t>(slot)];
    }
  }

 private:
  const SlotLookup& slot_of_;
  std::array<std::int32_t, kMaxLocalExperts> next_;
};

class NaiveBatched final : public WeightAndReduce {
 public:
  WeightAndReduceKind kind() const noexcept override { return WeightAndReduceKind::naive_batched; }

  void apply(const ReduceInput& input, const TensorView& output, Stream stream) const override {
    check_weighted(input, output, 3);
    const std::int64_t num_local = input.rows.size(0);
    require(num_local <= kMaxLocalExperts, "rows: given {}, expected at most {} local experts", input.rows,
            kMaxLocalExperts);
    const SlotLookup slot_of(input.topk_ids, input.expert_map, input.num_experts, num_local);
    if (stream.device.type == DeviceType::cuda) return sum_batched_rows_on_cuda(input, slot_of, output, stream);
    const std::int64_t products_per_token = std::max<std::int64_t>(1, slot_of.top_k() * output.size(1));
    cpu::parallel_for(*stream.executor, slot_of.num_tokens(), kProductsWorthThreads / products_per_token,
                      [&](std::int64_t begin, std::int64_t end, int) { sum(input, output, slot_of, begin, end); });
  }

 private:
  /// Each thread counts the tokens before its own again: O(M k) integers, against O(M k H) products in all.
  static void sum(const ReduceInput& input, const TensorView& output, const SlotLookup& slot_of, std::int64_t begin,
                  std::int64_t end) {
    RowCounters counters(slot_of);
    for (std::int64_t token = 0; token < begin; ++token) counters.pass(token);
    for (std::int64_t token = begin; token < end; ++token) {
      weighted_sum(input, output, token, 0, output.size(1), [&](std::int64_t pick) {
        const std::int64_t slot = slot_of(token, pick);
        if (slot < 0) return std::int64_t{-1};
        const std::int64_t row = counters.row(slot);
        require(row < input.rows.size(1), "rows: given {}, expected room for row {} of local expert {}", input.rows,
                row, slot);
        return slot * input.rows.stride(0) + row * input.rows.stride(1);
      });
      counters.pass(token);
    }
  }
};

}  // namespace

const WeightAndReduce& naive_batched() {
  static const NaiveBatched object;
  return object;
}

}  // namespace conclave::reduce
