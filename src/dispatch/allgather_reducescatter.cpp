// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Prepare: every rank gets the tokens, ids and weights of all ranks, in rank order, and computes its own experts for
// them. Finalize: each rank gets the partial rows of its own tokens back from every rank and sums them in rank order.
// The simplest exchange, and the most traffic: rows travel to ranks that have no expert for them, as do rows of zeros.
#include "base/error.hpp"
#include "cpu/parallel_for.hpp"
#include "dispatch/exchange.hpp"
#include "dispatch/rank_sum.hpp"
#include "dispatch/supports.hpp"

namespace conclave {
namespace dispatch {
namespace {

struct GatherState {
  int channel = 0;
  std::int64_t num_tokens = 0;  ///< Of this rank.
  TensorView counts;            ///< i64 [ranks]: tokens of each rank.
  TensorView sizes;             ///< i64 [2, ranks]: bytes for each rank, of the exchange that is being started.
  TensorView send_rows;         ///< [M, H]
  TensorView send_scales;       ///< [M, groups] of codes
  TensorView send_ids;          ///< i32 [M, k]
  TensorView send_weights;      ///< f32 [M, k]
  TensorView rows;              ///< [T, H]: numbers, or codes
  TensorView received_scales;   ///< [T, groups]
  TensorView scales;            ///< The same in the layout of the experts
  TensorView ids;               ///< i32 [T, k]
  TensorView weights;           ///< f32 [T, k]
  TensorView partial;           ///< f32 [T, H]
  TensorView returned;          ///< f32 [ranks, M, H]: or a narrower type, with the rest unused
};

class AllgatherReducescatter final : public ExchangePrepareFinalize {
 public:
  using ExchangePrepareFinalize::ExchangePrepareFinalize;

  void plan_scratch(Arena& arena, std::int64_t num_tokens) const override {
    GatherState state;
    take_state<GatherState>(arena);
    take_own(arena, num_tokens, state);
    take_all(arena, num_tokens, expert_rows(num_tokens), state);
  }

  Pending<Prepared> prepare_async(const PrepareInput& input, Arena& arena, Stream stream) override;
  Pending<Done> finalize_async(const FinalizeInput& input, const TensorView& output, Stream stream) override;

 private:
  void take_own(Arena& arena, std::int64_t num_tokens, GatherState& s) const {
    s.num_tokens = num_tokens;
    s.counts = arena.take(DType::i64, {num_ranks()});
    s.sizes = arena.take(DType::i64, {2, num_ranks()});
    s.send_rows = row_format().take_rows(arena, {num_tokens});
    s.send_scales = row_format().take_sent_scales(arena, num_tokens);
    s.send_ids = arena.take(DType::i32, {num_tokens, moe().num_slots()});
    s.send_weights = arena.take(DType::f32, {num_tokens, moe().num_slots()});
  }
  void take_all(Arena& arena, std::int64_t num_tokens, std::int64_t num_rows, GatherState& s) const {
    s.rows = row_format().take_rows(arena, {num_rows});
    s.received_scales = row_format().take_sent_scales(arena, num_rows);
    s.scales = row_format().transposes() ? row_format().take_scales(arena, {num_rows}) : s.received_scales;
    s.ids = arena.take(DType::i32, {num_rows, moe().num_slots()});
    s.weights = arena.take(DType::f32, {num_rows, moe().num_slots()});
    s.partial = arena.take(DType::f32, {num_rows, hidden_size()});
    s.returned = arena.take(DType::f32, {num_ranks(), num_tokens, hidden_size()});
  }

  void pack(const PrepareInput& input, const GatherState& s, Stream stream) const {
    cpu::parallel_for(*stream.executor, s.num_tokens, kSumsWorthThreads / hidden_size(),
                      [&](std::int64_t begin, std::int64_t end, int) {
                        for (std::int64_t m = begin; m < end; ++m) {
                          row_format().pack(input, m, s.send_rows.at(m).data, s.send_scales.at(m));
                          pack_picks(input, m, s.send_ids.at(m).as<std::int32_t>(), s.send_weights.at(m).as<float>());
                        }
                      });
  }

  /// Bytes that each rank sends, rows of `row_size` bytes.
  std::span<const std::int64_t> bytes_of_ranks(const GatherState& s, std::int64_t row_size) const {
    auto* sizes = s.sizes.as<std::int64_t>();
    for (int r = 0; r < num_ranks(); ++r) sizes[r] = s.counts.as<std::int64_t>()[r] * row_size;
    return {sizes, static_cast<std::size_t>(num_ranks())};
  }
  CommRequest gather(const GatherState& s, const TensorView& from, const TensorView& to) const {
    return communicator().start_all_gather(from.data, to.data, bytes_of_ranks(s, bytes_of(from.dtype, from.size(1))),
                                           s.channel);
  }
};

Pending<Prepared> AllgatherReducescatter::prepare_async(const PrepareInput& input, Arena& arena, Stream stream) {
  check_exchange(input, moe());
  row_format().check(input);
  GatherState& s = *take_state<GatherState>(arena);
  s.channel = input.channel;
  take_own(arena, input.hidden_states.size(0), s);
  pack(input, s, stream);
  // Sizes must be known before anything can be received behind one another.
  communicator().all_gather(&s.num_tokens, sizeof(s.num_tokens), s.counts.data, s.channel);
  std::int64_t num_rows = 0;
  for (int r = 0; r < num_ranks(); ++r) num_rows += s.counts.as<std::int64_t>()[r];
  take_all(arena, s.num_tokens, num_rows, s);
  CommRequest rows = gather(s, s.send_rows, s.rows);
  CommRequest scales = row_format().coded() ? gather(s, s.send_scales, s.received_scales) : CommRequest();
  CommRequest ids = gather(s, s.send_ids, s.ids);
  CommRequest weights = gather(s, s.send_weights, s.weights);
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

Pending<Done> AllgatherReducescatter::finalize_async(const FinalizeInput& input, const TensorView& output,
                                                     Stream stream) {
  require(input.handle != nullptr, "{}: finalize without the handle of prepare", name());
  GatherState& s = *static_cast<GatherState*>(input.handle);
  const ConstTensorView partial = partial_rows(input, {s.ids, s.weights}, moe(), s.partial, stream);
  const std::int64_t row_size = bytes_of(partial.dtype, hidden_size());
  auto* receive = s.sizes.as<std::int64_t>() + num_ranks();
  std::fill_n(receive, num_ranks(), s.num_tokens * row_size);
  CommRequest request = communicator().start_all_to_all(partial.data, bytes_of_ranks(s, row_size), s.returned.data,
                                                        {receive, static_cast<std::size_t>(num_ranks())}, s.channel);
  return Pending<Done>([request = std::move(request)]() mutable { request.wait(); },
                       [this, &s, &output, stream, dtype = partial.dtype] {
                         const auto* rows = s.returned.as<std::byte>();
                         const std::int64_t size = bytes_of(dtype, hidden_size());
                         sum_over_ranks(output, num_ranks(), dtype, stream, [&](std::int64_t token, int rank) {
                           return rows + (rank * s.num_tokens + token) * size;
                         });
                         return Done{};
                       });
}

Support supports_allgather(const Problem& problem) {
  return supports_exchange(problem, All2All::allgather_reducescatter);
}

}  // namespace
}  // namespace dispatch

namespace parts {

Entry<PrepareFinalize> dispatch_allgather_reducescatter();
Entry<PrepareFinalize> dispatch_allgather_reducescatter() {
  return dispatch::exchange_entry<dispatch::AllgatherReducescatter>(
      "dispatch/allgather_reducescatter", ActivationFormat::standard, dispatch::supports_allgather);
}

}  // namespace parts
}  // namespace conclave
