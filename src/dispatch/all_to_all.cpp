// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Prepare: each token goes once to every rank that holds one of its experts, with all its ids and weights; ranks tell
// each other first how many rows come. Finalize: a rank weights and sums its own picks of each row, in the order of k,
// and sends one partial row back; the token's owner sums the partial rows in rank order.
#include "base/error.hpp"
#include "cpu/parallel_for.hpp"
#include "dispatch/exchange.hpp"
#include "dispatch/rank_sum.hpp"
#include "dispatch/send_plan.hpp"
#include "dispatch/supports.hpp"

namespace conclave {
namespace dispatch {
namespace {

struct ScatterState {
  int channel = 0;
  SendPlan plan;
  TensorView received_counts;  ///< i64 [ranks]: rows from each rank.
  TensorView sizes;            ///< i64 [2, ranks]: bytes for and from each rank, of the exchange being started.
  TensorView send_rows;        ///< [S, H]
  TensorView send_scales;      ///< [S, groups] of codes
  TensorView send_ids;         ///< i32 [S, k]
  TensorView send_weights;     ///< f32 [S, k]
  TensorView returned;         ///< f32 [S, H]: or a narrower type, with the rest unused
  TensorView rows;             ///< [R, H]: numbers, or codes
  TensorView received_scales;  ///< [R, groups]
  TensorView scales;           ///< The same in the layout of the experts
  TensorView ids;              ///< i32 [R, k]
  TensorView weights;          ///< f32 [R, k]
  TensorView partial;          ///< f32 [R, H]
};

class AllToAll final : public ExchangePrepareFinalize {
 public:
  using ExchangePrepareFinalize::ExchangePrepareFinalize;

  void plan_scratch(Arena& arena, std::int64_t num_tokens) const override {
    ScatterState state;
    take_state<ScatterState>(arena);
    take_counts(arena, num_tokens, state);
    take_sent(arena, SendPlan::max_rows(num_tokens, moe().num_slots(), num_ranks()), state);
    take_received(arena, expert_rows(num_tokens), state);
  }

  Pending<Prepared> prepare_async(const PrepareInput& input, Arena& arena, Stream stream) override;
  Pending<Done> finalize_async(const FinalizeInput& input, const TensorView& output, Stream stream) override;

 private:
  void take_counts(Arena& arena, std::int64_t num_tokens, ScatterState& s) const {
    s.plan = SendPlan::take(arena, num_tokens, moe().num_slots(), num_ranks());
    s.received_counts = arena.take(DType::i64, {num_ranks()});
    s.sizes = arena.take(DType::i64, {2, num_ranks()});
  }
  void take_sent(Arena& arena, std::int64_t num_rows, ScatterState& s) const {
    s.send_rows = row_format().take_rows(arena, {num_rows});
    s.send_scales = row_format().take_sent_scales(arena, num_rows);
    s.send_ids = arena.take(DType::i32, {num_rows, moe().num_slots()});
    s.send_weights = arena.take(DType::f32, {num_rows, moe().num_slots()});
    s.returned = arena.take(DType::f32, {num_rows, hidden_size()});
  }
  void take_received(Arena& arena, std::int64_t num_rows, ScatterState& s) const {
    s.rows = row_format().take_rows(arena, {num_rows});
    s.received_scales = row_format().take_sent_scales(arena, num_rows);
    s.scales = row_format().transposes() ? row_format().take_scales(arena, {num_rows}) : s.received_scales;
    s.ids = arena.take(DType::i32, {num_rows, moe().num_slots()});
    s.weights = arena.take(DType::f32, {num_rows, moe().num_slots()});
    s.partial = arena.take(DType::f32, {num_rows, hidden_size()});
  }

  void pack(const PrepareInput& input, const ScatterState& s, Stream stream) const {
    cpu::parallel_for(*stream.executor, s.send_rows.size(0), kSumsWorthThreads / hidden_size(),
                      [&](std::int64_t begin, std::int64_t end, int) {
                        for (std::int64_t row = begin; row < end; ++row) {
                          const std::int64_t token = s.plan.token_of(row);
                          row_format().pack(input, token, s.send_rows.at(row).data, s.send_scales.at(row));
                          pack_picks(input, token, s.send_ids.at(row).as<std::int32_t>(),
                                     s.send_weights.at(row).as<float>());
                        }
                      });
  }

  /// Rows of `row_size` bytes by these counts, as bytes; half 0 or 1 of the scratch.
  std::span<const std::int64_t> in_bytes(const ScatterState& s, int half, const TensorView& counts,
                                         std::int64_t row_size) const {
    auto* sizes = s.sizes.as<std::int64_t>() + half * num_ranks();
    for (int r = 0; r < num_ranks(); ++r) sizes[r] = counts.as<std::int64_t>()[r] * row_size;
    return {sizes, static_cast<std::size_t>(num_ranks())};
  }
  CommRequest dispatch(const ScatterState& s, const TensorView& from, const TensorView& to) const {
    const std::int64_t row_size = bytes_of(from.dtype, from.size(1));
    return communicator().start_all_to_all(from.data, in_bytes(s, 0, s.plan.counts, row_size), to.data,
                                           in_bytes(s, 1, s.received_counts, row_size), s.channel);
  }
};

Pending<Prepared> AllToAll::prepare_async(const PrepareInput& input, Arena& arena, Stream stream) {
  check_exchange(input, moe());
  row_format().check(input);
  ScatterState& s = *take_state<ScatterState>(arena);
  s.channel = input.channel;
  take_counts(arena, input.hidden_states.size(0), s);
  s.plan.fill(moe().num_slots(), [&](std::int64_t token, std::int64_t pick) {
    return owners().rank_of(expert_of(input.routing, token, pick));
  });
  take_sent(arena, s.plan.num_rows(), s);
  pack(input, s, stream);
  communicator().all_to_all(s.plan.counts.data, s.received_counts.data, sizeof(std::int64_t), s.channel);
  std::int64_t num_rows = 0;
  for (int r = 0; r < num_ranks(); ++r) num_rows += s.received_counts.as<std::int64_t>()[r];
  take_received(arena, num_rows, s);
  CommRequest rows = dispatch(s, s.send_rows, s.rows);
  CommRequest scales = row_format().coded() ? dispatch(s, s.send_scales, s.received_scales) : CommRequest();
  CommRequest ids = dispatch(s, s.send_ids, s.ids);
  CommRequest weights = dispatch(s, s.send_weights, s.weights);
  return Pending<Prepared>(
      [rows = std::move(rows), scales = std::move(scales), ids = std::move(ids),
       weights = std::move(weights)]() mutable {
        rows.wait();
        scales.wait();
        ids.wait();
        weights.wait();
      },
      [this, &s] {
        Prepared prepared = prepared_rows(s.rows, s.received_scales, s.scales);
        prepared.dispatched = Routing{s.ids, s.weights};
        prepared.handle = &s;
        return prepared;
      });
}

Pending<Done> AllToAll::finalize_async(const FinalizeInput& input, const TensorView& output, Stream stream) {
  require(input.handle != nullptr, "{}: finalize without the handle of prepare", name());
  ScatterState& s = *static_cast<ScatterState*>(input.handle);
  const ConstTensorView partial = partial_rows(input, {s.ids, s.weights}, moe(), s.partial, stream);
  const std::int64_t row_size = bytes_of(partial.dtype, hidden_size());
  CommRequest request =
      communicator().start_all_to_all(partial.data, in_bytes(s, 0, s.received_counts, row_size), s.returned.data,
                                      in_bytes(s, 1, s.plan.counts, row_size), s.channel);
  return Pending<Done>([request = std::move(request)]() mutable { request.wait(); },
                       [this, &s, &output, stream, dtype = partial.dtype] {
                         const auto* rows = s.returned.as<std::byte>();
                         const std::int64_t size = bytes_of(dtype, hidden_size());
                         sum_over_ranks(output, num_ranks(), dtype, stream, [&](std::int64_t token, int rank) {
                           const std::int64_t row = s.plan.row(token, rank);
                           return row < 0 ? nullptr : rows + row * size;
                         });
                         return Done{};
                       });
}

Support supports_all_to_all(const Problem& problem) {
  return supports_exchange(problem, All2All::all_to_all);
}

}  // namespace
}  // namespace dispatch

namespace parts {

Entry<PrepareFinalize> dispatch_all_to_all();
Entry<PrepareFinalize> dispatch_all_to_all() {
  return dispatch::exchange_entry<dispatch::AllToAll>("dispatch/all_to_all", ActivationFormat::standard,
                                                      dispatch::supports_all_to_all);
}

}  // namespace parts
}  // namespace conclave
