// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// One part after another: make weights, pack them, run every token count, drop them.
#include "bench_run.hpp"

#include <algorithm>
#include <cmath>

#include "bench_cuda.hpp"
#include "bench_ranks.hpp"
#include "bench_weights.hpp"
#include "conclave/micro_batches.hpp"
#include "convert.hpp"
#include "error.hpp"
#include "memory.hpp"
#include "record.hpp"
#include "timeline.hpp"

namespace conclave::cli {
namespace {

class Bench {
 public:
  Bench(const SelectedProblem& selected, const BenchOptions& options, const Registry& registry, const Machine& machine)
      : selected_(selected), o_(options), registry_(registry), machine_(machine), problem_(selected.problem) {
    problem_.moe.max_num_tokens = *std::max_element(o_.tokens.begin(), o_.tokens.end());
    problem_.moe.router_logits_dtype = DType::f32;
    if (problem_.moe.routing.hash_table) bad_input("{}: routes by token id, which bench does not draw", selected.label);
    if (machine.gpu &&
        (o_.stages || !o_.record.empty() || o_.ranks != nullptr || o_.micro_batches > 1 || !o_.trace.empty()))
      bad_input("--stages, --record, --comm, --microbatches, --trace: given with a GPU, which bench times as a whole");
    if (o_.micro_batches > 1) micro_batches_.emplace(o_.micro_batches);
    spec_ = parse_routing(o_.routing, problem_.moe, selected.block);
    std::sort(o_.tokens.begin(), o_.tokens.end());
    o_.tokens.erase(std::unique(o_.tokens.begin(), o_.tokens.end()), o_.tokens.end());
  }

  BenchReport run() {
    for (const std::string& part : o_.parts) run_part(part);
    std::stable_sort(report_.rows.begin(), report_.rows.end(),
                     [](const BenchRow& a, const BenchRow& b) { return a.num_tokens < b.num_tokens; });
    note_caches();
    return std::move(report_);
  }

 private:
  /// `give_up`: the caller packs them at once and reads them no more.
  LayerWeights make_weights(const Variant& variant, bool give_up) const {
    LayerWeights weights = selected_.checkpoint
                               ? weights_for(variant, selected_.checkpoint->load(selected_.block), *machine_.executor)
                           : machine_.gpu ? repeated_weights(variant.plan->problem, *machine_.executor)
                                          : random_weights(variant.plan->problem, give_up, *machine_.executor);
    // Logits come from the draws.
    weights.router_weight.reset();
    weights.router_bias.reset();
    return weights;
  }

  void run_part(const std::string& part) {
    PlanOptions pins;
    pins.experts = part;
    pins.report_tokens = o_.tokens;
    if (o_.ranks != nullptr) pins.prepare_finalize = o_.prepare;
    const Variant variant = plan_variant(problem_to_plan(), problem_.moe.dtype, registry_, pins);
    if (!variant.plan) {
      if (report_.refusals.empty()) report_.refusals = variant.report;
      report_.notes.push_back(fmt::format("not run: {}: {}", part, variant.refusal));
      return;
    }
    if (!selected_.checkpoint && !machine_.gpu) require_memory(variant.plan->problem);
    progress_.show(fmt::format("{}: making weights", variant.plan->experts.chosen));
    // Copies on a GPU are packed from the same host memory.
    LayerWeights weights = make_weights(variant, o_.ranks == nullptr && !machine_.gpu);
    prepare_inputs(*variant.plan, weights);
    if (machine_.gpu) return run_on_gpu(*variant.plan, weights);
    if (o_.ranks != nullptr) return run_over_ranks(variant, pins, std::move(weights));
    if (!o_.record.empty() && report_.rows.empty()) record(*variant.plan, weights);
    const std::size_t first = report_.rows.size();
    {
      MoeLayer layer(*variant.plan, registry_, std::move(weights), machine_.stream);
      run_tokens(layer);
    }
    if (o_.stages) add_stages(variant, first);
  }

  /// What a part is asked about: of the first rank, where there are several.
  Problem problem_to_plan() const {
    if (o_.ranks == nullptr) return problem_;
    return problem_of_rank(problem_, o_.prepare, problem_.moe.max_num_tokens, o_.ranks->size(), 0, Placement::linear);
  }

  void run_over_ranks(const Variant& variant, const PlanOptions& pins, LayerWeights weights) {
    Problem whole = variant.plan->problem;
    whole.parallel = {};
    whole.moe.max_num_tokens = problem_.moe.max_num_tokens;
    progress_.show(fmt::format("{}: {} ranks", variant.plan->experts.chosen, o_.ranks->size()));
    const RankBench bench{*o_.ranks,
                          registry_,
                          whole,
                          pins,
                          std::move(weights),
                          hidden_,
                          draws_,
                          o_.tokens,
                          o_.timing,
                          o_.micro_batches,
                          report_.rows.empty() ? o_.trace : ""};
    const RankTimes times = time_over_ranks(bench, machine_.stream);
    for (const auto& [num_tokens, timing] : times.times)
      report_.rows.push_back({num_tokens,
                              fmt::format("{} + {}", times.experts, times.prepare),
                              point_of(whole, draws_.at(num_tokens), timing, num_tokens),
                              {}});
    if (!times.finite) report_.notes.push_back(fmt::format("WRONG: {} left values that are not finite", times.experts));
    if (report_.notes.empty())
      report_.notes.push_back(
          fmt::format("{} ranks by {}: each call's tokens are spread over the ranks, its time is "
                      "that of the slowest rank; the floor is that of the whole on this machine",
                      o_.ranks->size(), times.prepare));
  }

  /// Inputs and draws, the same for every part.
  void prepare_inputs(const Plan& plan, const LayerWeights& weights) {
    if (!draws_.empty()) return;
    const MoeConfig& c = plan.problem.moe;
    hidden_ = Tensor(c.dtype, {problem_.moe.max_num_tokens, c.hidden_size});
    fill_random(hidden_, 1.0, 77, *machine_.executor);
    // Draws are made on the host, whatever runs on them.
    Problem problem = plan.problem;
    problem.device = machine_.host_facts;
    const auto router = router_on_host(problem);
    for (const std::int64_t m : o_.tokens)
      draws_.emplace(m, make_draws(spec_, problem, *router, weights.e_score_correction_bias, m, machine_.host_stream));
  }

  std::unique_ptr<Router> router_on_host(const Problem& problem) const {
    for (const auto& entry : registry_.routers.entries())
      if (entry.supports(problem)) return entry.make(PartContext{problem, nullptr});
    throw Error(ErrorKind::unsupported, "bench: no router on the CPU draws for this problem");
  }

  static double forecast_seconds(const Plan& plan, std::int64_t num_tokens) {
    for (const CostPoint& cost : plan.costs)
      if (cost.num_tokens == num_tokens) return cost.forecast_seconds;
    return 0;
  }

  void run_on_gpu(const Plan& plan, const LayerWeights& weights) {
    std::vector<MoeLayer> copies;
    const int count = weight_copies(random_weights_bytes(plan.problem));
    for (int i = 0; i < count; ++i) copies.emplace_back(plan, registry_, weights, machine_.stream);
    for (const std::int64_t m : o_.tokens) {
      progress_.show(fmt::format("{}: {} tokens", plan.experts.chosen, m));
      const Tensor output = poisoned(hidden_.view().dtype, {m, hidden_.view().size(1)});
      const Timing timing =
          time_on_gpu(copies, hidden_.view().narrow(0, 0, m), draws_.at(m), o_.timing, output, machine_.stream);
      report_.rows.push_back({m,
                              plan.experts.chosen,
                              point_of(plan.problem, draws_.at(m), timing, m),
                              {},
                              1e6 * forecast_seconds(plan, m)});
      note_not_finite(output, plan.experts.chosen, m);
    }
  }

  void note_not_finite(const Tensor& output, const std::string& experts, std::int64_t num_tokens) {
    const Tensor values = convert(output, DType::f32, "output", *machine_.executor);
    if (!std::all_of(values.as<float>(), values.as<float>() + values.view().numel(),
                     [](float x) { return std::isfinite(x); }))
      report_.notes.push_back(
          fmt::format("WRONG: {} with {} tokens left values that are not finite", experts, num_tokens));
  }

  void run_tokens(MoeLayer& layer) {
    const Plan& plan = layer.plan();
    double last_us = 0;
    std::int64_t last_tokens = 0;
    for (const std::int64_t m : o_.tokens) {
      if (last_us * 1e-6 > o_.timing.max_seconds) {
        report_.notes.push_back(fmt::format("not run: {} with {} tokens: {} tokens took {:.1f} s (--max-time)",
                                            plan.experts.chosen, m, last_tokens, last_us * 1e-6));
        continue;
      }
      progress_.show(fmt::format("{}: {} tokens", plan.experts.chosen, m));
      const Draws& draws = draws_.at(m);
      const Timing timing = time_layer(layer, draws, m);
      report_.rows.push_back({m, plan.experts.chosen, point_of(plan.problem, draws, timing, m), {}});
      last_us = timing.median_us;
      last_tokens = m;
    }
  }

  Timing time_layer(MoeLayer& layer, const Draws& draws, std::int64_t num_tokens) {
    const Tensor output = poisoned(hidden_.view().dtype, {num_tokens, hidden_.view().size(1)});
    const ConstTensorView hidden = hidden_.view().narrow(0, 0, num_tokens);
    Workspace workspace;
    const auto run = [&](std::int64_t draw, StageObserver* observer) {
      LayerInput input;
      input.hidden_states = hidden;
      input.router_logits = draws.logits.view().at(draw);
      input.observer = observer;
      if (micro_batches_)
        run_micro_batched(layer, input, output, workspace, machine_.stream, *micro_batches_);
      else
        layer.run(input, output, workspace, machine_.stream);
    };
    const Timing timing = measure(o_.timing, draws.size(), [&](std::int64_t draw) { run(draw, nullptr); });
    if (!o_.trace.empty() && report_.rows.empty()) {
      Timeline timeline;
      run(0, &timeline);
      write_timeline(o_.trace, timeline, 0);
    }
    note_not_finite(output, layer.plan().experts.chosen, num_tokens);
    return timing;
  }

  void add_stages(const Variant& variant, std::size_t first) {
    // What took too long once is not run again piece by piece.
    std::vector<std::int64_t> tokens;
    for (std::size_t i = first; i < report_.rows.size(); ++i)
      if (report_.rows[i].point.timing.median_us * 1e-6 < o_.timing.max_seconds)
        tokens.push_back(report_.rows[i].num_tokens);
    if (tokens.empty()) return;
    progress_.show(fmt::format("{}: stages", variant.plan->experts.chosen));
    const StageInput input{*variant.plan, registry_, [&] { return make_weights(variant, true); },
                           hidden_,       draws_,    o_.timing};
    auto times = time_stages(input, tokens, machine_.stream);
    for (std::size_t i = first; i < report_.rows.size(); ++i)
      report_.rows[i].stages = times[report_.rows[i].num_tokens];
  }

  void record(const Plan& plan, const LayerWeights& weights) const {
    const std::int64_t m = o_.tokens.front();
    const Recording recording{plan, weights, hidden_.view().narrow(0, 0, m),     draws_.at(m).logits.view().at(0), {},
                              {},   {},      "conclave bench " + selected_.label};
    record_case(o_.record, recording, machine_.stream);
  }

  void note_caches() {
    const auto cache = static_cast<double>(last_cache_bytes());
    const auto bytes = static_cast<double>(random_weights_bytes(problem_));
    if (cache > 0 && bytes < 4 * cache)
      report_.notes.push_back(
          fmt::format("the weights ({:.1f} MB) are not much larger than the last-level cache ({:.1f} MB): part of them "
                      "stays there, so GB/s can exceed the memory's and the ratio 1",
                      bytes * 1e-6, cache * 1e-6));
  }

  const SelectedProblem& selected_;
  BenchOptions o_;
  const Registry& registry_;
  const Machine& machine_;
  Problem problem_;
  RoutingSpec spec_;
  Tensor hidden_;
  std::map<std::int64_t, Draws> draws_;
  std::optional<MicroBatches> micro_batches_;
  Progress progress_;
  BenchReport report_;
};

}  // namespace

BenchReport run_bench(const SelectedProblem& selected, const BenchOptions& options, const Registry& registry,
                      const Machine& machine) {
  return Bench(selected, options, registry, machine).run();
}

}  // namespace conclave::cli
