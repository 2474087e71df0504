// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The verdict of one run: every expected tensor of the case, and the reference.
#include <vector>

#include "convert.hpp"
#include "error.hpp"
#include "replay_case.hpp"

namespace conclave::cli {
namespace {

void fail_row(ReplayRow& row, const std::string& message) {
  row.outcome = Outcome::failed;
  row.message += (row.message.empty() ? "" : "; ") + message;
}

void judge_output(const Tensor& output, const ConstTensorView& expected, const Tolerance& tolerance, const char* what,
                  Executor& executor, std::optional<Comparison>& comparison, ReplayRow& row) {
  comparison = compare(output, expected, tolerance, executor);
  if (!comparison->ok)
    fail_row(row, fmt::format("{}: relative error {:.3e}, largest {:.3e}, tolerance {}", what, comparison->relative,
                              comparison->max_abs, to_string(tolerance)));
}

void judge_ids(const Tensor& ids, const ConstTensorView& expected, ReplayRow& row) {
  const Tensor wanted = convert_ids(expected, "expected_topk_ids");
  if (expected.rank != 2 || expected.size(0) != ids.view().size(0) || expected.size(1) > ids.view().size(1))
    return fail_row(row, fmt::format("expected_topk_ids: {}, but the layer's are {}", to_string(expected),
                                     to_string(ConstTensorView(ids))));
  // In order: the order of slots is part of the library's contract.
  const IdComparison c = compare_ids(ids, wanted, expected.size(1));
  if (!c.same_order)
    fail_row(row, fmt::format("expected_topk_ids: {} of {} differ{}", c.different, expected.numel(),
                              c.different == 0 ? ", but their order does" : ""));
}

void judge_weights(const Case& value, const Tensor& weights, Executor& executor, ReplayRow& row) {
  const ConstTensorView& expected = *value.expected_topk_weights;
  // Weights are f32 whatever the layer's type; a file that holds them narrower has rounded them.
  const Tolerance tolerance{tolerance_of(expected.dtype).relative, value.tolerance};
  const ConstTensorView given = weights.view().narrow(1, 0, std::min(expected.size(-1), weights.view().size(1)));
  const Comparison c = compare(given, expected, tolerance, executor);
  if (!c.ok)
    fail_row(row, fmt::format("expected_topk_weights: relative error {:.3e}, largest {:.3e}, tolerance {}", c.relative,
                              c.max_abs, to_string(tolerance)));
}

/// Rows that each local expert gets, by the ids that were used.
std::vector<std::int32_t> counts_of(const Case& value, const Tensor& ids) {
  const std::int64_t num_experts = value.moe.num_weight_experts();
  std::vector<std::int32_t> counts(static_cast<std::size_t>(value.weights.experts.num_local_experts()), 0);
  for (std::int64_t i = 0; i < ids.view().numel(); ++i) {
    const std::int32_t id = ids.as<std::int32_t>()[i];
    if (id < 0 || id >= num_experts) continue;
    const std::int32_t slot = value.weights.expert_map ? value.weights.expert_map->as<std::int32_t>()[id] : id;
    if (slot >= 0 && slot < static_cast<std::int64_t>(counts.size())) ++counts[static_cast<std::size_t>(slot)];
  }
  return counts;
}

void judge_counts(const Case& value, const Tensor& ids, ReplayRow& row) {
  const Tensor expected = convert_ids(*value.expected_counts, "expected_counts");
  const std::vector<std::int32_t> counts = counts_of(value, ids);
  const auto size = static_cast<std::int64_t>(counts.size());
  if (expected.view().numel() != size)
    return fail_row(row, fmt::format("expected_counts: {} counts for {} local experts", expected.view().numel(), size));
  for (std::int64_t e = 0; e < size; ++e)
    if (expected.as<std::int32_t>()[e] != counts[static_cast<std::size_t>(e)])
      return fail_row(row, fmt::format("expected_counts[{}]: {} rows, expected {}", e,
                                       counts[static_cast<std::size_t>(e)], expected.as<std::int32_t>()[e]));
}

}  // namespace

void judge(const Case& value, const LayerResult& result, const std::optional<Tensor>& reference, Executor& executor,
           ReplayRow& row) {
  const Tolerance tolerance{tolerance_of(value.moe.dtype).relative, value.tolerance};
  if (reference) judge_output(result.output, *reference, tolerance, "reference", executor, row.reference, row);
  if (value.expected) judge_output(result.output, *value.expected, tolerance, "expected", executor, row.expected, row);
  if (value.expected_topk_ids) judge_ids(result.topk_ids, *value.expected_topk_ids, row);
  if (value.expected_topk_weights) judge_weights(value, result.topk_weights, executor, row);
  if (value.expected_counts) judge_counts(value, result.topk_ids, row);
}

}  // namespace conclave::cli
