// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Prepare: one message to every rank, without asking for sizes first: how many tokens come, their ids, their rows, each
// token once. The receiver lays the rows out by expert: slots for max_num_tokens of every rank. Finalize: every row of
// every (token, expert) goes back unweighted, and the token's owner weights and sums them in the order of k: the same
// additions as on one rank, so the same bits. More traffic back than all_to_all, and one round less.
#include "base/error.hpp"
#include "base/round_up.hpp"
#include "cpu/parallel_for.hpp"
#include "dispatch/exchange.hpp"
#include "dispatch/rank_sum.hpp"
#include "dispatch/send_plan.hpp"
#include "dispatch/supports.hpp"

namespace conclave {
namespace dispatch {
namespace {

/// Rows of a message start at a multiple of this, so that no element straddles a cache line for nothing.
constexpr std::int64_t kMessageAlignment = 64;

struct SlotState {
  int channel = 0;
  SendPlan plan;
  TensorView sizes;        ///< i64 [2, ranks]: rows that this rank gets back from and returns to each rank
  TensorView returned_at;  ///< i32 [M, k]: row of (token, pick) among those that come back, -1 if none
  TensorView send;         ///< u8 [ranks, message]
  TensorView receive;      ///< u8 [ranks, largest message]
  TensorView messages;     ///< u8: SendMessage [ranks], ReceiveMessage [ranks]
  TensorView activations;  ///< [E_local, ranks * T, H]: numbers, or codes
  TensorView scales;       ///< [E_local, ranks * T, groups] of codes
  TensorView counts;       ///< i32 [E_local]
  TensorView source;       ///< i32 [rows to return]: row of each among [E_local * ranks * T]
  TensorView packed;       ///< f32 [rows to return, H]: or a narrower type, with the rest unused
  TensorView returned;     ///< f32 [M * k, H]
  TensorView rows;         ///< f32 [M, k, H]: the same by (token, pick)
};

class LowLatency final : public ExchangePrepareFinalize {
 public:
  using ExchangePrepareFinalize::ExchangePrepareFinalize;

  ActivationFormat activation_format() const noexcept override { return ActivationFormat::batched_experts; }
  void plan_scratch(Arena& arena, std::int64_t num_tokens) const override {
    take_state<SlotState>(arena);
    take(arena, num_tokens);
  }
  Pending<Prepared> prepare_async(const PrepareInput& input, Arena& arena, Stream stream) override;
  Pending<Done> finalize_async(const FinalizeInput& input, const TensorView& output, Stream stream) override;

 private:
  std::int64_t top_k() const noexcept { return moe().num_slots(); }
  std::int64_t num_local() const noexcept { return owners().num_local(rank()); }

  /// A message: the number of tokens, ids i32 [tokens, k], rows [tokens, H], scales [tokens, groups] where the rows are
  /// codes; each part aligned.
  static constexpr std::int64_t kIdsAt = kMessageAlignment;
  std::int64_t rows_at(std::int64_t num_tokens) const {
    return kIdsAt + round_up(num_tokens * top_k() * std::int64_t{sizeof(std::int32_t)}, kMessageAlignment);
  }
  std::int64_t row_bytes() const { return row_format().row_bytes(); }
  std::int64_t scales_at(std::int64_t num_tokens) const {
    return rows_at(num_tokens) + round_up(num_tokens * row_bytes(), kMessageAlignment);
  }
  std::int64_t message_bytes(std::int64_t num_tokens) const {
    return scales_at(num_tokens) + num_tokens * row_format().scale_bytes();
  }

  SlotState take(Arena& arena, std::int64_t num_tokens) const;
  void find_returns(const PrepareInput& input, const SlotState& s) const;
  void pack(const PrepareInput& input, const SlotState& s, Stream stream) const;
  CommRequest send(const SlotState& s) const;
  void lay_out(const SlotState& s) const;
  std::int64_t lay_out_from(int source, const SlotState& s, std::int64_t next_return) const;
  CommRequest give_back(const SlotState& s, const TensorView& computed, Stream stream) const;
  void reduce(const FinalizeInput& input, const SlotState& s, DType dtype, const TensorView& output,
              Stream stream) const;
};

SlotState LowLatency::take(Arena& arena, std::int64_t num_tokens) const {
  const std::int64_t ranks = num_ranks(), most = moe().max_num_tokens;
  // A token has a row at each of its distinct experts, and no more than there are here.
  const std::int64_t returns = ranks * most * std::min(top_k(), num_local());
  SlotState s;
  s.plan = SendPlan::take(arena, num_tokens, top_k(), ranks);
  s.sizes = arena.take(DType::i64, {2, ranks});
  s.returned_at = arena.take(DType::i32, {num_tokens, top_k()});
  s.send = arena.take(DType::u8, {ranks, round_up(message_bytes(num_tokens), kMessageAlignment)});
  s.receive = arena.take(DType::u8, {ranks, round_up(message_bytes(most), kMessageAlignment)});
  s.messages = arena.take(DType::u8, {ranks * static_cast<std::int64_t>(sizeof(SendMessage) + sizeof(ReceiveMessage))});
  s.activations = row_format().take_rows(arena, {num_local(), expert_rows(num_tokens)});
  s.scales = row_format().take_scales(arena, {num_local(), expert_rows(num_tokens)});
  s.counts = arena.take(DType::i32, {num_local()});
  s.source = arena.take(DType::i32, {returns});
  s.packed = arena.take(DType::f32, {returns, hidden_size()});
  s.returned = arena.take(DType::f32, {num_tokens * top_k(), hidden_size()});
  s.rows = arena.take(DType::f32, {num_tokens, top_k(), hidden_size()});
  return s;
}

/// Which row comes back for (token, pick): from rank 0 first, then by token, then by pick; one for each expert.
void LowLatency::find_returns(const PrepareInput& input, const SlotState& s) const {
  auto* at = s.returned_at.as<std::int32_t>();
  auto* from_rank = s.sizes.as<std::int64_t>();
  std::int32_t next = 0;
  for (int r = 0; r < num_ranks(); ++r) {
    const std::int32_t first = next;
    for (std::int64_t token = 0; token < s.returned_at.size(0); ++token)
      for (std::int64_t pick = 0; pick < top_k(); ++pick) {
        const std::int64_t id = expert_of(input.routing, token, pick);
        const int owner = owners().rank_of(id);
        std::int32_t* row = at + token * top_k();
        if (owner < 0) row[pick] = -1;
        if (owner != r) continue;
        std::int64_t before = 0;
        while (before < pick && expert_of(input.routing, token, before) != id) ++before;
        row[pick] = before < pick ? row[before] : next++;
      }
    from_rank[r] = next - first;
  }
}

void LowLatency::pack(const PrepareInput& input, const SlotState& s, Stream stream) const {
  std::int64_t first = 0;
  for (int r = 0; r < num_ranks(); first += s.plan.count(r++)) {
    auto* message = s.send.at(r).as<std::byte>();
    const std::int64_t count = s.plan.count(r);
    *reinterpret_cast<std::int64_t*>(message) = count;
    auto* ids = reinterpret_cast<std::int32_t*>(message + kIdsAt);
    for (std::int64_t i = 0; i < count; ++i)
      for (std::int64_t pick = 0; pick < top_k(); ++pick)
        ids[i * top_k() + pick] = static_cast<std::int32_t>(expert_of(input.routing, s.plan.token_of(first + i), pick));
    std::byte* rows = message + rows_at(count);
    std::byte* scales = message + scales_at(count);
    cpu::parallel_for(
        *stream.executor, count, kSumsWorthThreads / hidden_size(), [&](std::int64_t begin, std::int64_t end, int) {
          for (std::int64_t i = begin; i < end; ++i)
            row_format().pack(
                input, s.plan.token_of(first + i), rows + i * row_bytes(),
                TensorView(scales + i * row_format().scale_bytes(), s.scales.dtype, {row_format().num_scales()}));
        });
  }
}

CommRequest LowLatency::send(const SlotState& s) const {
  const auto ranks = static_cast<std::size_t>(num_ranks());
  auto* sends = s.messages.as<SendMessage>();
  auto* receives = reinterpret_cast<ReceiveMessage*>(sends + ranks);
  for (int r = 0; r < num_ranks(); ++r) {
    sends[r] = {s.send.at(r).data, message_bytes(s.plan.count(r))};
    receives[r] = {s.receive.at(r).data, message_bytes(moe().max_num_tokens)};
  }
  return communicator().start({"low_latency_dispatch", {sends, ranks}, {receives, ranks}, false}, s.channel);
}

/// Rows of an expert by source rank, then by token; the order in which they are returned is by token, then by pick.
void LowLatency::lay_out(const SlotState& s) const {
  std::fill_n(s.counts.as<std::int32_t>(), num_local(), 0);
  std::int64_t next = 0;
  for (int r = 0; r < num_ranks(); ++r) {
    const std::int64_t first = next;
    next = lay_out_from(r, s, next);
    s.sizes.as<std::int64_t>()[num_ranks() + r] = next - first;
  }
}

std::int64_t LowLatency::lay_out_from(int source, const SlotState& s, std::int64_t next_return) const {
  const auto* message = s.receive.at(source).as<std::byte>();
  const std::int64_t count = *reinterpret_cast<const std::int64_t*>(message);
  if (count < 0 || count > moe().max_num_tokens)
    fail(ErrorKind::communication, "{}: rank {} sends {} tokens, expected at most {}", name(), source, count,
         moe().max_num_tokens);
  const auto* ids = reinterpret_cast<const std::int32_t*>(message + kIdsAt);
  const std::byte* rows = message + rows_at(count);
  const std::byte* scales = message + scales_at(count);
  auto* counts = s.counts.as<std::int32_t>();
  const std::int64_t slots = s.activations.size(1);
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t pick = 0; pick < top_k(); ++pick) {
      const std::int32_t* mine = ids + i * top_k();
      const bool first = std::find(mine, mine + pick, mine[pick]) == mine + pick;
      if (owners().rank_of(mine[pick]) != rank() || !first) continue;
      const std::int64_t expert = owners().slot_of(mine[pick]);
      const std::int64_t row = counts[expert]++;
      std::copy_n(rows + i * row_bytes(), row_bytes(), s.activations.at(expert).at(row).as<std::byte>());
      row_format().copy_scales(scales + i * row_format().scale_bytes(), s.scales.at(expert).at(row));
      s.source.as<std::int32_t>()[next_return++] = static_cast<std::int32_t>(expert * slots + row);
    }
  return next_return;
}

Pending<Prepared> LowLatency::prepare_async(const PrepareInput& input, Arena& arena, Stream stream) {
  check_exchange(input, moe());
  row_format().check(input);
  SlotState& s = *take_state<SlotState>(arena);
  s = take(arena, input.hidden_states.size(0));
  s.channel = input.channel;
  s.plan.fill(top_k(), [&](std::int64_t token, std::int64_t pick) {
    return owners().rank_of(expert_of(input.routing, token, pick));
  });
  find_returns(input, s);
  pack(input, s, stream);
  return Pending<Prepared>([request = send(s)]() mutable { request.wait(); },
                           [this, &s] {
                             lay_out(s);
                             Prepared prepared;
                             prepared.activations = s.activations;
                             if (row_format().coded()) prepared.scales = s.scales;
                             prepared.expert_tokens = ExpertTokens{s.counts, s.counts.as<std::int32_t>()};
                             prepared.handle = &s;
                             return prepared;
                           });
}

/// `computed`: [E_local, ranks * T, H].
CommRequest LowLatency::give_back(const SlotState& s, const TensorView& computed, Stream stream) const {
  const std::int64_t size = bytes_of(computed.dtype, hidden_size());
  auto* sends = s.messages.as<SendMessage>();
  auto* receives = reinterpret_cast<ReceiveMessage*>(sends + num_ranks());
  auto *packed = s.packed.as<std::byte>(), *returned = s.returned.as<std::byte>();
  const auto* from = s.sizes.as<std::int64_t>();
  const auto* to = from + num_ranks();
  std::int64_t out = 0, in = 0;
  for (int r = 0; r < num_ranks(); out += to[r], in += from[r], ++r) {
    sends[r] = {packed + out * size, to[r] * size};
    receives[r] = {returned + in * size, from[r] * size};
  }
  const auto* rows = computed.as<std::byte>();
  cpu::parallel_for(*stream.executor, out, kSumsWorthThreads / hidden_size(),
                    [&](std::int64_t begin, std::int64_t end, int) {
                      for (std::int64_t i = begin; i < end; ++i)
                        std::copy_n(rows + s.source.as<std::int32_t>()[i] * size, size, packed + i * size);
                    });
  const auto ranks = static_cast<std::size_t>(num_ranks());
  return communicator().start({"low_latency_combine", {sends, ranks}, {receives, ranks}}, s.channel);
}

/// The reduction of one rank, on rows that lie where its experts would have left them.
void LowLatency::reduce(const FinalizeInput& input, const SlotState& s, DType dtype, const TensorView& output,
                        Stream stream) const {
  const std::int64_t size = bytes_of(dtype, hidden_size());
  auto* rows = s.rows.as<std::byte>();
  const auto* returned = s.returned.as<std::byte>();
  const auto* at = s.returned_at.as<std::int32_t>();
  cpu::parallel_for(*stream.executor, s.returned_at.numel(), kSumsWorthThreads / hidden_size(),
                    [&](std::int64_t begin, std::int64_t end, int) {
                      for (std::int64_t i = begin; i < end; ++i)
                        if (at[i] >= 0) std::copy_n(returned + at[i] * size, size, rows + i * size);
                    });
  weight_and_reduce(WeightAndReduceKind::contiguous)
      .apply({.rows = TensorView(rows, dtype, {output.size(0), top_k(), hidden_size()}),
              .topk_weights = input.routing.topk_weights,
              .topk_ids = input.routing.topk_ids,
              .expert_map = std::nullopt,
              .num_experts = moe().num_weight_experts(),
              .weight_already_applied = input.router_weight_applied},
             output, stream);
}

Pending<Done> LowLatency::finalize_async(const FinalizeInput& input, const TensorView& output, Stream stream) {
  require(input.handle != nullptr, "{}: finalize without the handle of prepare", name());
  const SlotState& s = *static_cast<const SlotState*>(input.handle);
  const TensorView& computed = input.expert_output.rows;
  if (input.expert_output.kind != ExpertOutputKind::unreduced_batched || computed.rank != 3 ||
      computed.size(0) != num_local() || computed.size(1) != s.activations.size(1) || !computed.is_contiguous())
    fail(ErrorKind::invalid_argument, "{}: given {} {}, expected contiguous unreduced_batched [{}, {}, {}]", name(),
         name_of(input.expert_output.kind), to_string(computed), num_local(), s.activations.size(1), hidden_size());
  return Pending<Done>([request = give_back(s, computed, stream)]() mutable { request.wait(); },
                       [this, &input, &s, dtype = computed.dtype, &output, stream] {
                         reduce(input, s, dtype, output, stream);
                         return Done{};
                       });
}

Support supports_low_latency(const Problem& problem) {
  return supports_exchange(problem, All2All::low_latency);
}

}  // namespace
}  // namespace dispatch

namespace parts {

Entry<PrepareFinalize> dispatch_low_latency();
Entry<PrepareFinalize> dispatch_low_latency() {
  return dispatch::exchange_entry<dispatch::LowLatency>("dispatch/low_latency", ActivationFormat::batched_experts,
                                                        dispatch::supports_low_latency);
}

}  // namespace parts
}  // namespace conclave
