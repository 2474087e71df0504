// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: the registry. Out: rows for whole layers over simulated ranks: what is owed once is added once, whoever sums;
// micro-batches have the bits of the batch; the open tail is norm(all_reduce(routed * s + shared) + residual).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "conclave/error.hpp"
#include "conclave/tail.hpp"
#include "conclave/verify.hpp"
#include "verify/element.hpp"
#include "verify/random.hpp"
#include "verify/rank_run.hpp"
#include "verify/sections.hpp"

namespace conclave::verify_detail {
namespace {

constexpr std::int64_t kRankTokens = 14;

struct RankLayerRow {
  DType dtype;
  int num_ranks;
  bool tail;  ///< Else terms that a tail cannot add: zero experts, a latent width.
  bool quick = false;
};
constexpr RankLayerRow kRankLayers[] = {
    {DType::f32, 3, true, true}, {DType::f32, 4, false}, {DType::bf16, 2, true}, {DType::bf16, 4, false}};

MoeConfig rank_layer(const RankLayerRow& row) {
  MoeConfig c;
  c.num_experts = 8;
  c.top_k = 3;
  c.hidden_size = 34;
  c.intermediate_size = 19;
  c.max_num_tokens = kRankTokens;
  c.dtype = c.weight_dtype = row.dtype;
  c.has_w2_bias = true;
  c.routing = routing_preset(RoutingMethod::renormalize_naive);
  c.routing.routed_scaling_factor = 2.5;
  c.routed_scale_on_output = true;
  c.shared = {11, true};
  if (!row.tail) {
    c.latent_size = 14;
    c.zero_experts = 2;
  }
  return c;
}

void scale(LayerData& data, const char* name, double factor) {
  const TensorView view = data.tensors.at(name).view;
  for_each_offset(view, [&](std::int64_t offset) { store(view, offset, factor * load(view, offset)); });
}

/// The first rank's experts give nothing.
LayerData without_a_rank(const LayerData& data, int num_ranks) {
  LayerData changed = data.copy();
  const std::int64_t local =
      make_expert_map(data.problem.moe.num_weight_experts(), num_ranks, 0, Placement::linear).num_local();
  for (const char* name : {"w2", "w2_bias"}) {
    const TensorView view = changed.tensors.at(name).view.narrow(0, 0, local);
    for_each_offset(view, [&](std::int64_t offset) { store(view, offset, 0); });
  }
  return changed;
}

class RankLayerSection {
 public:
  RankLayerSection(Session& session, const RankLayerRow& row, const LayerData& data)
      : s_(session),
        row_(row),
        data_(data),
        label_(fmt::format("{} ranks layer shared factor {}{}", row.num_ranks, name_of(row.dtype),
                           row.tail ? "" : " latent zero_experts")),
        expected_(oracle_layer(data)),
        norm_weight_(row.dtype, {data.problem.moe.hidden_size}) {
    Random random(session.seed_of(6, 0), "norm_weight");
    for (std::int64_t h = 0; h < data.problem.moe.hidden_size; ++h) store(norm_weight_, h, random.uniform(0.5, 1.5));
  }

  void run(const Entry<Experts>& experts) {
    for (const auto& ends : s_.registry.prepare_finalizes.entries()) {
      const std::string part = experts.name + " + " + ends.name;
      if (!composable(experts, ends) || experts.monolithic || !s_.reporter.wants(part, label_)) continue;
      const auto parallel = parallel_over(ends, data_.problem, row_.num_ranks, 0);
      if (!parallel) continue;
      Tensor output;
      try {
        output = run_layers_over_ranks(s_.registry, experts.name, ends, data_, row_.num_ranks);
      } catch (const Error& error) {
        if (error.kind() == ErrorKind::unsupported)
          s_.reporter.refused(part, label_, error.what());
        else
          s_.reporter.add(part, label_, "ranks", Outcome::failed(std::string("threw: ") + error.what()));
        continue;
      }
      s_.reporter.add(part, label_, "ranks", judged(output));
      run_layer_mutations(experts.name, ends, part);
      run_micro_batches(experts.name, ends, part, output);
      if (row_.tail && !parallel->use_all2all()) run_tail_checks(experts.name, ends, part);
      s_.reporter.finished(part, label_);
    }
  }

 private:
  Outcome judged(const ConstTensorView& output) const {
    return compare_with_oracle(output, expected_, tolerance_of(row_.dtype));
  }

  void run_layer_mutations(const std::string& experts, const Entry<PrepareFinalize>& ends, const std::string& part) {
    const auto attempt = [&](std::string_view name, const LayerData& data) {
      s_.reporter.mutation_run(part, label_, name, [&] {
        return judged(run_layers_over_ranks(s_.registry, experts, ends, data, row_.num_ranks));
      });
    };
    attempt("dropped_rank", without_a_rank(data_, row_.num_ranks));
    LayerData changed = data_.copy();
    scale(changed, "shared_w2", 2);
    attempt("doubled_shared", changed);
    changed = data_.copy();
    changed.problem.moe.routing.routed_scaling_factor *= changed.problem.moe.routing.routed_scaling_factor;
    attempt("doubled_routed_scale", changed);
  }

  void run_micro_batches(const std::string& experts, const Entry<PrepareFinalize>& ends, const std::string& part,
                         const ConstTensorView& whole) {
    const auto run = [&](bool rows_of_sibling) {
      return run_layers_over_ranks(s_.registry, experts, ends, data_, row_.num_ranks,
                                   {.micro_batches = 2, .rows_of_sibling = rows_of_sibling});
    };
    s_.reporter.run(part, label_, "micro_batches", [&] {
      return bitwise_equal(run(false).view(), whole) ? Outcome{} : Outcome::failed("another result than the batch's");
    });
    s_.reporter.mutation_run(part, label_, "rows_of_sibling", [&] { return judged(run(true)); });
  }

  Outcome judged_tail(const ConstTensorView& normed) const {
    const MoeConfig& c = data_.problem.moe;
    const std::vector<double> x = to_doubles(data_.hidden_states.view), w = to_doubles(norm_weight_);
    std::vector<double> right(x.size());
    const auto hidden = static_cast<std::size_t>(c.hidden_size);
    for (std::size_t row = 0; row < x.size(); row += hidden) {
      double squares = 0;
      for (std::size_t i = row; i < row + hidden; ++i) {
        right[i] = expected_.values[i] + x[i];
        squares += right[i] * right[i];
      }
      const double root = std::sqrt(squares / static_cast<double>(hidden) + TailConfig{}.epsilon);
      for (std::size_t h = 0; h < hidden; ++h) right[row + h] *= w[h] / root;
    }
    Outcome outcome;
    outcome.error = relative_error(normed, ConstTensorView(right.data(), DType::f64, {normed.size(0), c.hidden_size}));
    outcome.ok = outcome.error <= tolerance_of(row_.dtype);
    if (!outcome.ok) outcome.message = fmt::format("relative error {:.3g} of the normed rows", outcome.error);
    return outcome;
  }

  void run_tail_checks(const std::string& experts, const Entry<PrepareFinalize>& ends, const std::string& part) {
    const auto run = [&](const TailMistakes& mistakes) {
      return judged_tail(
          run_tails_over_ranks(s_.registry, experts, ends, data_, row_.num_ranks, norm_weight_, mistakes));
    };
    s_.reporter.run(part, label_, "tail", [&] { return run({}); });
    const auto attempt = [&](std::string_view name, const TailMistakes& mistakes) {
      s_.reporter.mutation_run(part, label_, name, [&] { return run(mistakes); });
    };
    attempt("tail_missing_residual", {.no_residual = true});
    attempt("tail_doubled_shared", {.shared_on_every_rank = true});
    attempt("tail_doubled_routed_scale", {.scale_twice = true});
    attempt("tail_dropped_rank", {.dropped_rank = row_.num_ranks - 1});
  }

  Session& s_;
  const RankLayerRow& row_;
  const LayerData& data_;
  std::string label_;
  OracleOutput expected_;
  Tensor norm_weight_;
};

}  // namespace

void verify_layers_over_ranks(Session& session) {
  std::uint64_t index = 0;
  for (const RankLayerRow& row : kRankLayers) {
    ++index;
    if (session.options.quick && !row.quick) continue;
    const LayerData data = make_layer_data(rank_layer(row), session.device, kRankTokens, session.seed_of(6, index));
    RankLayerSection section(session, row, data);
    for (const auto& experts : session.registry.experts.entries()) section.run(experts);
  }
}

}  // namespace conclave::verify_detail
