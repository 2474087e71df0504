// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: the registry and the router grid. Out: rows for every router: ids exact, weights close, everything written,
// repeatable, independent of the batch, and its own mutations.
#include <fmt/format.h>

#include <cmath>
#include <map>

#include "conclave/error.hpp"
#include "conclave/verify.hpp"
#include "verify/element.hpp"
#include "verify/places.hpp"
#include "verify/router_grid.hpp"
#include "verify/sections.hpp"

namespace conclave::verify_detail {
namespace {

constexpr double kWeightTolerance = 1e-5;

struct Routed {
  Tensor ids, weights;
};

/// Routes rows [first, first + count) into poisoned memory.
Routed route(const Router& router, const RouterData& data, std::int64_t first, std::int64_t count, Stream stream) {
  const std::int64_t slots = data.problem.moe.num_slots();
  Routed out{Tensor(DType::i32, {count, slots}), Tensor(DType::f32, {count, slots})};
  poison(out.ids);
  poison(out.weights);
  Arena measure = Arena::measuring(stream.device);
  router.plan_scratch(measure, count);
  const Tensor memory = poisoned(DType::u8, {measure.peak()}, stream);
  Arena arena({memory.as<std::byte>(), static_cast<std::size_t>(measure.peak())}, stream.device);
  Places places(stream);
  RouterInput input = data.input(first, count);
  places.put(input);
  router.route(input, {places.put(out.ids.view()), places.put(out.weights.view())}, arena, stream);
  places.take_back(out.ids);
  places.take_back(out.weights);
  return out;
}

Outcome compare(const Routed& got, const OracleRouting& right, const RouterData& data) {
  Outcome outcome;
  for (std::size_t i = 0; i < right.ids.size(); ++i) {
    const auto row = i / static_cast<std::size_t>(right.num_slots),
               slot = i % static_cast<std::size_t>(right.num_slots);
    const auto at = static_cast<std::int64_t>(i);
    const auto id = static_cast<std::int64_t>(load(got.ids, at));
    const double weight = load(got.weights, at);
    if (id != right.ids[i])
      return Outcome::failed(fmt::format("topk_ids[{}, {}] is {}, expected {}", row, slot, id, right.ids[i]));
    if (data.infinite_row[row]) continue;
    const double error = std::fabs(weight - right.weights[i]) / std::max(1e-6, std::fabs(right.weights[i]));
    outcome.error = std::max(outcome.error, error);
    if (!(error <= kWeightTolerance))
      return Outcome::failed(
          fmt::format("topk_weights[{}, {}] is {:.9g}, expected {:.9g}", row, slot, weight, right.weights[i]), error);
  }
  return outcome;
}

bool same(const Routed& a, const Routed& b) {
  return bitwise_equal(a.ids, b.ids) && bitwise_equal(a.weights, b.weights);
}

/// A mistake in the rule that the router is given while the oracle keeps the original.
struct RuleMutation {
  std::string_view name;
  bool (*apply)(RouterData& data);
};

constexpr RuleMutation kRuleMutations[] = {
    {"dropped_correction_bias",
     [](RouterData& d) {
       if (!d.correction_bias) return false;
       for_each_offset(d.correction_bias->view, [&](std::int64_t i) { store(d.correction_bias->view, i, 0.0); });
       return true;
     }},
    {"dropped_renormalize",
     [](RouterData& d) {
       Renormalize& mode = d.problem.moe.routing.renormalize;
       const bool had = mode != Renormalize::none;
       mode = Renormalize::none;
       return had;
     }},
    {"dropped_routing_factor",
     [](RouterData& d) {
       double& factor = d.problem.moe.routing.routed_scaling_factor;
       const bool had = factor != 1.0;
       factor = 1.0;
       return had;
     }},
    {"factor_in_weights_and_on_output",
     [](RouterData& d) {
       const bool had = d.problem.moe.routed_scale_on_output;
       d.problem.moe.routed_scale_on_output = false;
       return had;
     }},
    {"ignored_groups",
     [](RouterData& d) {
       RoutingConfig& r = d.problem.moe.routing;
       const bool had = r.num_expert_group > 1;
       r.num_expert_group = r.topk_group = 1;
       return had;
     }},
    {"group_score_by_max",
     [](RouterData& d) {
       RoutingConfig& r = d.problem.moe.routing;
       const bool had = r.num_expert_group > 1 && r.group_score == GroupScore::top2_sum;
       r.group_score = GroupScore::max;
       return had;
     }},
    {"wrong_scoring",
     [](RouterData& d) {
       Scoring& scoring = d.problem.moe.routing.scoring;
       scoring = scoring == Scoring::sigmoid ? Scoring::softmax : Scoring::sigmoid;
       return d.problem.moe.routing.method != RoutingMethod::sparsemixer;
     }},
};

class RouterSection {
 public:
  explicit RouterSection(Session& session) : s_(session) {}

  void run_all() {
    std::uint64_t index = 0;
    for (const RouterRow& row : router_grid())
      for (const DType dtype : kUnquantised) {
        ++index;
        if (s_.options.quick && !(row.quick && dtype != DType::f16)) continue;
        const RouterData data = make_router_data(row, dtype, s_.device, s_.seed_of(0, index));
        const OracleRouting right = oracle_route(data.problem.moe, data.input(0, data.logits.view.size(0)));
        for (const auto& entry : s_.registry.routers.entries()) run_one(entry, data, right);
      }
  }

 private:
  void run_one(const Entry<Router>& entry, const RouterData& data, const OracleRouting& right) {
    if (!s_.reporter.wants(entry.name, data.label)) return;
    if (const Support support = entry.supports(data.problem); !support)
      return s_.reporter.refused(entry.name, data.label, support.reason());
    std::unique_ptr<Router> router;
    Routed first;
    const std::int64_t num_tokens = data.logits.view.size(0);
    const Outcome built = Reporter::guarded([&] {
      router = entry.make({data.problem, nullptr});
      first = route(*router, data, 0, num_tokens, s_.stream);
      return Outcome{};
    });
    if (!built.ok) return s_.reporter.add(entry.name, data.label, "run", built);
    s_.reporter.add(entry.name, data.label, "reference", compare(first, right, data));
    run_others(entry.name, *router, data, first);
    run_mutations(entry, data, right);
    s_.reporter.finished(entry.name, data.label);
  }

  void run_others(const std::string& name, const Router& router, const RouterData& data, const Routed& first) {
    const std::int64_t num_tokens = data.logits.view.size(0);
    const auto differs = [](const char* how) { return Outcome::failed(std::string("the routing differs ") + how); };
    s_.reporter.run(name, data.label, "repeat", [&] {
      return same(route(router, data, 0, num_tokens, s_.stream), first) ? Outcome{} : differs("from the first run");
    });
    s_.reporter.run(name, data.label, "thread_count", [&] {
      if (s_.stream.device.type != DeviceType::cpu) return Outcome::skip();
      const bool ok = same(route(router, data, 0, num_tokens, s_.one_thread), first) &&
                      same(route(router, data, 0, num_tokens, s_.two_threads), first);
      return ok ? Outcome{} : differs("with the number of threads");
    });
    s_.reporter.run(name, data.label, "batch_invariance", [&] {
      for (std::int64_t m = 0; m < num_tokens; ++m) {
        const Routed alone = route(router, data, m, 1, s_.stream);
        if (!bitwise_equal(alone.ids, first.ids.view().narrow(0, m, 1)) ||
            !bitwise_equal(alone.weights, first.weights.view().narrow(0, m, 1)))
          return Outcome::failed(fmt::format("row {} alone is routed in another way", m));
      }
      return Outcome{};
    });
    s_.reporter.run(name, data.label, "zero_tokens", [&] {
      route(router, data, 0, 0, s_.stream);
      return Outcome{};
    });
  }

  void run_mutations(const Entry<Router>& entry, const RouterData& data, const OracleRouting& right) {
    for (const RuleMutation& mutation : kRuleMutations) {
      RouterData changed = data;
      if (changed.correction_bias) changed.correction_bias = changed.correction_bias->copy();
      if (!mutation.apply(changed) || !entry.supports(changed.problem)) continue;
      const OracleRouting other = oracle_route(changed.problem.moe, changed.input(0, data.logits.view.size(0)));
      if (!matters(other, right, data)) continue;
      s_.reporter.mutation(entry.name, data.label, mutation.name, Reporter::guarded([&] {
                             const std::unique_ptr<Router> router = entry.make({changed.problem, nullptr});
                             return compare(route(*router, changed, 0, data.logits.view.size(0), s_.stream), right,
                                            data);
                           }));
    }
  }

  static bool matters(const OracleRouting& a, const OracleRouting& b, const RouterData& data) {
    for (std::size_t i = 0; i < a.ids.size(); ++i) {
      if (data.infinite_row[i / static_cast<std::size_t>(a.num_slots)]) continue;
      if (a.ids[i] != b.ids[i] || std::fabs(a.weights[i] - b.weights[i]) > 1e-2 * std::fabs(b.weights[i])) return true;
    }
    return false;
  }

  Session& s_;
};

}  // namespace

void verify_routers(Session& session) {
  RouterSection(session).run_all();
}

}  // namespace conclave::verify_detail
