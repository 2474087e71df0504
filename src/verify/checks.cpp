// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The checks of checks.hpp.
#include "verify/checks.hpp"

#include <fmt/format.h>

#include <cmath>

#include "conclave/error.hpp"
#include "conclave/verify.hpp"
#include "verify/element.hpp"

namespace conclave::verify_detail {
namespace {

Rows all_rows(const Subject& s) {
  return {0, s.data.num_tokens()};
}

/// The first row in which two outputs differ, or -1.
std::int64_t first_different_row(const ConstTensorView& a, const ConstTensorView& b) {
  for (std::int64_t m = 0; m < a.size(0); ++m)
    if (!bitwise_equal(a.at(m), b.at(m))) return m;
  return -1;
}

Outcome same_bits(const ConstTensorView& output, const ConstTensorView& expected, std::string_view what) {
  const std::int64_t row = first_different_row(output, expected);
  if (row < 0) return {};
  return Outcome::failed(fmt::format("row {} differs {}", row, what), relative_error(output, expected));
}

Outcome reference(const Subject& s) {
  return compare_with_oracle(s.first.output, s.expected, tolerance_of(s.data.problem));
}

Outcome poison_check(const Subject& s) {
  const std::vector<double> values = to_doubles(s.first.output);
  for (std::size_t i = 0; i < values.size(); ++i)
    if (std::isnan(values[i]))
      return Outcome::failed(fmt::format("output[{}, {}] is NaN: not written, or read from poisoned memory",
                                         i / static_cast<std::size_t>(s.data.problem.moe.hidden_size),
                                         i % static_cast<std::size_t>(s.data.problem.moe.hidden_size)));
  if (!s.first.guards_intact) return Outcome::failed("wrote beside the output or behind the workspace");
  return {};
}

Outcome repeat(const Subject& s) {
  return same_bits(s.combination.run(s.data, all_rows(s), s.stream).output, s.first.output, "from the first run");
}

/// One scale of the activations spans the batch: rows then depend on each other by the definition of the key.
bool spans_the_batch(const Subject& s) {
  const std::optional<ScaleDesc> scale = scheme_of(s.data.problem.quant.activations).scale;
  return scale && scale->dynamic && scale->group.rows < 0;
}

/// Each row alone (a few of them where there are many), and all rows in batches of an odd size.
Outcome batch_invariance(const Subject& s) {
  const std::int64_t num_tokens = s.data.num_tokens();
  if (num_tokens < 2 || spans_the_batch(s)) return Outcome::skip();
  constexpr std::int64_t kRowsAlone = 6;
  const ConstTensorView first = s.first.output;
  const std::int64_t step = std::max<std::int64_t>(1, num_tokens / kRowsAlone);
  for (std::int64_t m = 0; m < num_tokens; m += step) {
    const RunResult alone = s.combination.run(s.data, {m, 1}, s.stream);
    if (!bitwise_equal(alone.output.view(), first.narrow(0, m, 1)))
      return Outcome::failed(fmt::format("row {} alone differs from the same row among {}", m, num_tokens));
  }
  const std::int64_t batch = num_tokens > 11 ? 11 : 2;
  for (std::int64_t m = 0; m < num_tokens; m += batch) {
    const std::int64_t count = std::min(batch, num_tokens - m);
    const RunResult part = s.combination.run(s.data, {m, count}, s.stream);
    const std::int64_t row = first_different_row(part.output, first.narrow(0, m, count));
    if (row >= 0)
      return Outcome::failed(
          fmt::format("row {} in a batch of {} differs from the same row among {}", m + row, count, num_tokens));
  }
  return {};
}

/// A token of NaN must not reach any other token.
Outcome row_isolation(const Subject& s) {
  const std::int64_t num_tokens = s.data.num_tokens();
  if (num_tokens < 2 || spans_the_batch(s)) return Outcome::skip();
  ProblemData broken = s.data;
  broken.hidden_states = broken.hidden_states.copy();
  const std::int64_t bad = num_tokens / 2;
  const TensorView row = broken.hidden_states.view.at(bad);
  for (std::int64_t h = 0; h < row.size(0); ++h) store(row, h, NAN);
  const RunResult result = s.combination.run(broken, all_rows(s), s.stream);
  const ConstTensorView output = result.output;
  const ConstTensorView first = s.first.output;
  for (std::int64_t m = 0; m < num_tokens; ++m)
    if (m != bad && !bitwise_equal(output.at(m), first.at(m)))
      return Outcome::failed(fmt::format("NaN in row {} changed row {}", bad, m));
  return {};
}

Outcome inputs_unchanged(const Subject& s) {
  if (s.inputs_changed_by_first) return Outcome::failed("hidden states, ids, weights or another input changed");
  return {};
}

Outcome zero_tokens(const Subject& s) {
  ProblemData empty = s.data;
  for (Slab* slab : {&empty.hidden_states, &empty.topk_ids, &empty.topk_weights, &empty.logits}) {
    slab->view = slab->view.narrow(0, 0, 0);
    slab->view.data = nullptr;
  }
  const RunResult result = s.combination.run(empty, {0, 0}, s.stream);
  if (!result.guards_intact) return Outcome::failed("wrote although there are no tokens");
  return {};
}

Outcome thread_count(const Subject& s) {
  if (s.stream.device.type != DeviceType::cpu) return Outcome::skip();
  const RunResult one = s.combination.run(s.data, all_rows(s), s.one_thread);
  const RunResult two = s.combination.run(s.data, all_rows(s), s.two_threads);
  const Outcome outcome = same_bits(one.output, s.first.output, "with one thread");
  return outcome.ok ? same_bits(two.output, s.first.output, "with two threads") : outcome;
}

/// Other weights, then the right ones again, in place: the result must be that of weights packed once.
Outcome update(const Subject& s) {
  if (s.data.w13.view.numel() == 0 || s.data.num_tokens() == 0) return Outcome::skip();
  ProblemData zeros = s.data.copy();
  for (const Slab* slab : {&zeros.w13, &zeros.w2})
    for_each_offset(slab->view, [&](std::int64_t offset) { store(slab->view, offset, 0.0); });
  const Experts& experts = s.combination.kernel().experts();
  experts.update(s.combination.packed(), zeros.weights(), s.stream);
  const RunResult other = s.combination.run(s.data, all_rows(s), s.stream);
  experts.update(s.combination.packed(), s.data.weights(), s.stream);
  const Outcome restored =
      same_bits(s.combination.run(s.data, all_rows(s), s.stream).output, s.first.output, "after update()");
  if (!restored.ok) return restored;
  std::vector<double> first = to_doubles(s.first.output);
  const bool all_zero = std::all_of(first.begin(), first.end(), [](double v) { return v == 0; });
  if (!all_zero && bitwise_equal(other.output.view(), s.first.output.view()))
    return Outcome::failed("update() to zero weights did not change the result");
  return {};
}

/// Weights packed by nobody's kernel: must be refused by name, never read.
class ForeignWeights final : public PackedWeights {
 public:
  explicit ForeignWeights(std::int64_t experts) : experts_(experts) {}
  const std::string& layout() const noexcept override { return layout_; }
  std::int64_t bytes() const noexcept override { return 0; }
  std::int64_t num_local_experts() const noexcept override { return experts_; }

 private:
  std::string layout_ = "experts/of_another_kernel";
  std::int64_t experts_;
};

Outcome foreign_weights(const Subject& s) {
  if (s.data.num_tokens() == 0) return Outcome::skip();
  const ForeignWeights foreign(s.data.w13.view.size(0));
  try {
    s.combination.run(s.data, all_rows(s), foreign, s.stream);
  } catch (const Error&) {
    return {};
  }
  return Outcome::failed("ran with weights that another kernel packed");
}

constexpr Check kChecks[] = {
    {"reference", reference},
    {"poison", poison_check},
    {"repeat", repeat},
    {"batch_invariance", batch_invariance},
    {"row_isolation", row_isolation},
    {"inputs_unchanged", inputs_unchanged},
    {"zero_tokens", zero_tokens},
    {"thread_count", thread_count},
    {"update", update},
    {"foreign_weights", foreign_weights},
};

}  // namespace

std::span<const Check> kernel_checks() noexcept {
  return kChecks;
}

Outcome compare_with_oracle(const ConstTensorView& output, const OracleOutput& expected, double tolerance) {
  const std::int64_t width = output.size(1);
  const ConstTensorView right(expected.values.data(), DType::f64, {output.size(0), width});
  Outcome outcome;
  outcome.error = relative_error(output, right);
  if (!(outcome.error <= tolerance)) {
    outcome.ok = false;
    outcome.message = fmt::format("relative error {:.3g}, expected at most {:.1g}", outcome.error, tolerance);
    return outcome;
  }
  for (std::int64_t m = 0; m < output.size(0); ++m) {
    if (expected.row_has_local_expert[static_cast<std::size_t>(m)]) continue;
    for (const double value : to_doubles(output.at(m)))
      if (value != 0)
        return Outcome::failed(fmt::format("row {} has no local expert and holds {}, expected zeros", m, value));
  }
  return outcome;
}

std::uint64_t hash_of_inputs(const ProblemData& data) {
  std::uint64_t hash = 0;
  const auto add = [&](const Slab& slab) { hash = hash * 31 + hash_of(slab.view); };
  for (const Slab* slab : {&data.hidden_states, &data.topk_ids, &data.topk_weights, &data.logits, &data.w13, &data.w2})
    add(*slab);
  for (const auto* slab : {&data.correction_bias, &data.expert_map, &data.w13_bias, &data.w2_bias})
    if (slab->has_value()) add(**slab);
  for (const auto& [_, slab] : data.scales) add(slab);
  return hash;
}

}  // namespace conclave::verify_detail
