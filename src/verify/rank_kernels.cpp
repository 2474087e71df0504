// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: the registry. Out: rows for every experts part with every prepare/finalize that exchanges tokens, over simulated
// ranks, plain and quantised, and for the mistakes of transports and of scales there.
#include <fmt/format.h>

#include "conclave/error.hpp"
#include "conclave/shard.hpp"
#include "conclave/verify.hpp"
#include "verify/combination.hpp"
#include "verify/element.hpp"
#include "verify/mutations.hpp"
#include "verify/rank_run.hpp"
#include "verify/sections.hpp"

namespace conclave::verify_detail {
namespace {

using K = QuantKey;

struct RankRow {
  DType dtype;
  int num_ranks;
  GridRow row;
  bool quick = false;
};

GridRow row_of(Shape shape, Picks picks, Bias bias = Bias::none, QuantConfig quant = {}) {
  GridRow row;
  row.shape = shape;
  row.picks = picks;
  row.bias = bias;
  row.quant = quant;
  return row;
}

std::vector<RankRow> rank_grid() {
  return {{DType::f32, 3, row_of({8, 3, 33, 19, 17}, Picks::duplicates, Bias::both), true},
          {DType::bf16, 4, row_of({7, 2, 40, 24, 13}, Picks::holes)},
          {DType::f16, 2, row_of({5, 3, 17, 23, 9}, Picks::out_of_range, Bias::w2)},
          {DType::f32, 8, row_of({9, 2, 24, 7, 21}, Picks::hot)},
          {DType::f32, 3, row_of({6, 2, 64, 32, 11}, Picks::distinct, Bias::none, {K::int4_group32, K::none}), true},
          {DType::bf16, 4, row_of({8, 2, 32, 64, 9}, Picks::duplicates, Bias::none, {K::mxfp4, K::none})},
          {DType::f32, 2, row_of({5, 2, 160, 40, 7}, Picks::holes, Bias::none, {K::fp8_block128, K::fp8_block128})},
          {DType::bf16, 3, row_of({6, 2, 24, 40, 11}, Picks::distinct, Bias::none, {K::int8_channel, K::int8_token})}};
}

/// The picks of one rank's experts are lost.
bool dropped_rank(ProblemData& data, int num_ranks) {
  const ExpertMap map = make_expert_map(data.problem.moe.num_experts, num_ranks, 0, Placement::linear);
  for_each_offset(data.topk_ids.view, [&](std::int64_t offset) {
    const auto id = static_cast<std::int64_t>(load(data.topk_ids.view, offset));
    if (id >= 0 && id < map.num_local()) store(data.topk_ids.view, offset, -1);
  });
  return true;
}

class RankSection {
 public:
  RankSection(Session& session, const RankRow& row, const ProblemData& data)
      : s_(session), row_(row), data_(data), label_(fmt::format("{} ranks {}", row.num_ranks, data.label)) {
    expected_ = right_answer(data);
  }

  void run(const Entry<Experts>& experts) {
    for (const auto& ends : s_.registry.prepare_finalizes.entries()) {
      const std::string part = experts.name + " + " + ends.name;
      if (!composable(experts, ends) || experts.monolithic || !s_.reporter.wants(part, label_)) continue;
      Problem problem = data_.problem;
      const auto parallel = parallel_over(ends, problem, row_.num_ranks, 0);
      if (!parallel || !parallel->use_all2all()) continue;
      problem.parallel = *parallel;
      if (const Support support = experts.supports(problem); !support) {
        s_.reporter.refused(part, label_, support.reason());
        continue;
      }
      run_pair(experts, ends, part);
      s_.reporter.finished(part, label_);
    }
  }

 private:
  Tensor over_ranks(const Entry<Experts>& experts, const Entry<PrepareFinalize>& ends, const ProblemData& data,
                    const RankMistake& mistake = {}) const {
    return run_kernels_over_ranks(experts, ends, data, row_.num_ranks, mistake);
  }
  static OracleOutput right_answer(const ProblemData& data) {
    OracleRouting routing;
    routing.num_slots = data.problem.moe.top_k;
    for (const double id : to_doubles(data.topk_ids.view)) routing.ids.push_back(static_cast<std::int64_t>(id));
    routing.weights = to_doubles(data.topk_weights.view);
    return oracle_moe(data.problem.moe, data.hidden_states.view, routing, oracle_experts(data.problem, data.weights()),
                      std::nullopt);
  }
  /// True if a mistake moves the right answer far enough for any part to notice.
  bool matters(const ProblemData& changed) const {
    const auto view = [](const OracleOutput& x) {
      return ConstTensorView(x.values.data(), DType::f64, {static_cast<std::int64_t>(x.values.size())});
    };
    const OracleOutput answer = right_answer(changed);
    return relative_error(view(answer), view(expected_)) > 4 * tolerance_of(data_.problem);
  }
  Outcome judged(const ConstTensorView& output) const {
    return compare_with_oracle(output, expected_, tolerance_of(data_.problem));
  }

  void run_pair(const Entry<Experts>& experts, const Entry<PrepareFinalize>& ends, const std::string& part) {
    Tensor output;
    s_.reporter.run(part, label_, "ranks", [&] {
      output = over_ranks(experts, ends, data_);
      return judged(output);
    });
    if (!output) return;
    s_.reporter.run(part, label_, "repeat", [&] {
      return bitwise_equal(over_ranks(experts, ends, data_).view(), output.view())
                 ? Outcome{}
                 : Outcome::failed("the second run differs");
    });
    // Every row of every pick comes home, to be added as on one rank.
    if (ends.format == ActivationFormat::batched_experts)
      s_.reporter.run(part, label_, "same_bits_as_one_rank", [&] {
        return bitwise_equal(alone(experts).view(), output.view()) ? Outcome{}
                                                                   : Outcome::failed("another result than one rank's");
      });
    run_mutations(experts, ends, part);
  }

  Tensor alone(const Entry<Experts>& experts) const {
    for (const auto& ends : s_.registry.prepare_finalizes.entries()) {
      if (!composable(experts, ends) || !ends.supports(data_.problem)) continue;
      const auto parallel = parallel_over(ends, data_.problem, 2, 0);
      if (parallel && parallel->use_all2all()) continue;
      Combination combination(s_.registry, experts, ends, data_, s_.stream);
      return combination.run(data_, {0, data_.num_tokens()}, s_.stream).output;
    }
    throw Error(ErrorKind::unsupported, "no prepare/finalize of one rank for " + experts.name);
  }

  void run_mutations(const Entry<Experts>& experts, const Entry<PrepareFinalize>& ends, const std::string& part) {
    const auto attempt = [&](std::string_view name, const ProblemData& data, const RankMistake& mistake = {}) {
      s_.reporter.mutation_run(part, label_, name, [&] { return judged(over_ranks(experts, ends, data, mistake)); });
    };
    ProblemData changed = data_.copy();
    if (dropped_rank(changed, row_.num_ranks)) attempt("dropped_rank", changed);
    attempt("experts_of_another_rank", data_, {.placement_of_weights = Placement::round_robin});
    if (data_.problem.quant == QuantConfig{}) return;
    for (const Mutation& mutation : quant_mutations()) {
      changed = data_.copy();
      // Without quantised activations, another format of the same tensors would be another problem.
      if (mutation.name != "unquantised_activations" && mutation.apply(changed) && matters(changed))
        attempt(mutation.name, changed);
    }
  }

  Session& s_;
  const RankRow& row_;
  const ProblemData& data_;
  std::string label_;
  OracleOutput expected_;
};

}  // namespace

void verify_ranks(Session& session) {
  std::uint64_t index = 0;
  for (const RankRow& row : rank_grid()) {
    ++index;
    if (session.options.quick && !row.quick) continue;
    const ProblemData data = make_problem(row.row, row.dtype, session.device, session.seed_of(5, index));
    RankSection section(session, row, data);
    for (const auto& experts : session.registry.experts.entries()) section.run(experts);
  }
}

}  // namespace conclave::verify_detail
