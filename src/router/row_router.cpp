// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: logits. Out: ids and weights of every slot, row by row.
#include "router/row_router.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/round_up.hpp"
#include "cpu/float_convert.hpp"
#include "cpu/parallel_for.hpp"
#include "router/check_input.hpp"
#include "router/row_weights.hpp"
#include "router/score.hpp"

namespace conclave::router {
namespace {

/// Logits that one thread scores in about the 5 us that a parallel region costs.
constexpr std::int64_t kSerialLogits = 2048;

/// Bytes of one thread's scratch, in whole cache lines.
std::int64_t scratch_bytes(const Rule& rule) {
  const std::int64_t keys = rule.num_experts + rule.routing.num_expert_group;
  const std::int64_t floats = 3 * rule.num_experts;
  constexpr std::int64_t kKeyBytes = sizeof(SelectionKey), kFloatBytes = sizeof(float);
  return round_up(keys * kKeyBytes + floats * kFloatBytes, 64);
}

}  // namespace

RowRouter::RowRouter(std::string name, const Problem& problem, int most_threads)
    : name_(std::move(name)), rule_(problem), simulator_(rule_), most_threads_(most_threads) {}

void RowRouter::plan_scratch(Arena& arena, std::int64_t num_tokens) const {
  if (num_tokens > 0) arena.take(DType::u8, {most_threads_, scratch_bytes(rule_)});
}

RowScratch RowRouter::scratch_of(const TensorView& memory, int thread) const noexcept {
  std::byte* at = memory.as<std::byte>() + thread * memory.stride(0);
  RowScratch s{};
  s.keys = reinterpret_cast<SelectionKey*>(at);
  s.groups = s.keys + rule_.num_experts;
  s.logits = reinterpret_cast<float*>(s.groups + rule_.routing.num_expert_group);
  s.scores = s.logits + rule_.num_experts;
  s.values = s.scores + rule_.num_experts;
  return s;
}

/// An id of the table that is no expert, or a token that is not in the table, makes an empty slot; an error if checked.
void RowRouter::look_up(const RouterInput& input, std::int64_t m, std::int32_t* ids) const {
  const ConstTensorView& tokens = *input.token_ids;
  const ConstTensorView& table = *input.hash_table;
  const std::int64_t at = m * tokens.stride(0);
  const std::int64_t token = tokens.dtype == DType::i32 ? tokens.as<std::int32_t>()[at] : tokens.as<std::int64_t>()[at];
  const bool known = token >= 0 && token < table.size(0);
  require(known || !rule_.checked, "router: token_ids[{}]: given {}, expected 0 to {} (rows of hash_table)", m, token,
          table.size(0) - 1);
  const std::int32_t* row = known ? table.as<std::int32_t>() + token * table.stride(0) : nullptr;
  for (std::int64_t k = 0; k < rule_.top_k; ++k) {
    const std::int32_t id = known ? row[k] : -1;
    const bool legal = id >= 0 && id < rule_.num_experts;
    require(legal || id == -1 || !rule_.checked, "router: hash_table[{}, {}]: given {}, expected -1 to {}", token, k,
            id, rule_.num_experts - 1);
    ids[k] = legal ? id : -1;
  }
}

void RowRouter::route_row(const RouterInput& input, std::int64_t m, const RowScratch& scratch, std::int32_t* ids,
                          float* weights) const {
  if (rule_.routing.method == RoutingMethod::simulated) {
    simulator_.draw(rule_, input.step, m, ids, weights, scratch.keys);
  } else {
    cpu::load_row_f32(input.logits.at(m), scratch.logits);
    Row row{scratch.logits, scratch.logits, nullptr};
    if (!rule_.ranks_logits()) {
      score(rule_.routing.scoring, scratch.logits, rule_.num_experts, scratch.scores);
      row.scores = scratch.scores;
    }
    if (rule_.routing.has_bias) row.bias = input.e_score_correction_bias->as<float>();
    if (rule_.routing.hash_table) {
      look_up(input, m, ids);
    } else {
      choose(rule_, row, scratch, ids);
    }
    weigh_chosen(rule_, row, ids, weights, scratch.values);
  }
  renormalize_and_scale(rule_, weights);
  append_shared(rule_, ids, weights);
}

void RowRouter::route_custom(const RouterInput& input, const Routing& out) const {
  const Routing routed{out.topk_ids.narrow(1, 0, rule_.top_k), out.topk_weights.narrow(1, 0, rule_.top_k)};
  (*input.custom)(input, routed);
  for (std::int64_t m = 0; m < out.topk_ids.size(0); ++m) {
    float* weights = out.topk_weights.at(m).as<float>();
    renormalize_and_scale(rule_, weights);
    append_shared(rule_, out.topk_ids.at(m).as<std::int32_t>(), weights);
  }
}

void RowRouter::route(const RouterInput& input, const Routing& out, Arena& arena, Stream stream) const {
  check_input(rule_, input, out, stream);
  const std::int64_t rows = out.topk_ids.size(0);
  if (rows == 0) return;
  if (rule_.routing.method == RoutingMethod::custom) return route_custom(input, out);

  const TensorView memory = arena.take(DType::u8, {most_threads_, scratch_bytes(rule_)});
  const auto route_rows = [&](std::int64_t begin, std::int64_t end, int thread) {
    const RowScratch scratch = scratch_of(memory, thread);
    for (std::int64_t m = begin; m < end; ++m)
      route_row(input, m, scratch, out.topk_ids.at(m).as<std::int32_t>(), out.topk_weights.at(m).as<float>());
  };
  // An executor with more threads than were planned for has no scratch for the rest.
  const int threads = std::min(most_threads_, stream.executor->num_threads());
  if (threads == 1 || rows == 1 || rows * rule_.num_experts <= kSerialLogits) return route_rows(0, rows, 0);
  stream.executor->parallel([&](int thread) {
    if (thread >= threads) return;
    const cpu::Range share = cpu::static_share(rows, threads, thread);
    route_rows(share.begin, share.end, thread);
  });
}

}  // namespace conclave::router
