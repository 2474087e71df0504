// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: the registry and the problem grid. Out: rows for every experts part with every prepare/finalize of its kind.
#include <fmt/format.h>

#include <map>
#include <optional>

#include "conclave/error.hpp"
#include "verify/element.hpp"
#include "verify/mutations.hpp"
#include "verify/sections.hpp"

namespace conclave::verify_detail {
namespace {

/// A mutation must move the right answer by this many tolerances before a part is asked to notice it.
constexpr double kMustMatter = 4;
/// The same mistake on the same part is tried on this many problems; more would only repeat it.
constexpr int kProblemsPerMutation = 3;

OracleRouting given_routing(const ProblemData& data) {
  OracleRouting routing;
  routing.num_slots = data.problem.moe.top_k;
  for (const double id : to_doubles(data.topk_ids.view)) routing.ids.push_back(static_cast<std::int64_t>(id));
  routing.weights = to_doubles(data.topk_weights.view);
  return routing;
}

OracleOutput right_answer(const ProblemData& data, bool monolithic) {
  const MoeConfig& moe = data.problem.moe;
  const OracleRouting routing =
      monolithic ? oracle_route(moe, data.router_input(0, data.num_tokens())) : given_routing(data);
  return oracle_moe(moe, data.hidden_states.view, routing, oracle_experts(data.problem, data.weights()),
                    data.map_view());
}

double distance(const OracleOutput& a, const OracleOutput& b) {
  const auto view = [](const OracleOutput& x) {
    return ConstTensorView(x.values.data(), DType::f64, {static_cast<std::int64_t>(x.values.size())});
  };
  return relative_error(view(a), view(b));
}

/// One problem with its right answers, computed when first asked for.
class Task {
 public:
  explicit Task(ProblemData data) : data_(std::move(data)) {}
  const ProblemData& data() const noexcept { return data_; }

  const OracleOutput& expected(bool monolithic) {
    std::optional<OracleOutput>& slot = expected_[monolithic ? 1 : 0];
    if (!slot) slot = right_answer(data_, monolithic);
    return *slot;
  }

  /// The problem that a mutation makes of this one; null where it makes none, or the right answer hardly moves.
  const ProblemData* mutated(const Mutation& mutation, bool monolithic) {
    if (monolithic && !mutation.for_monolithic) return nullptr;
    const auto [slot, is_new] = mutated_[monolithic ? 1 : 0].try_emplace(mutation.name);
    if (is_new) slot->second = mutate(mutation, monolithic);
    return slot->second ? &*slot->second : nullptr;
  }

 private:
  std::optional<ProblemData> mutate(const Mutation& mutation, bool monolithic) {
    ProblemData changed = data_.copy();
    if (!mutation.apply(changed)) return std::nullopt;
    const double moved = distance(right_answer(changed, monolithic), expected(monolithic));
    if (!(moved > kMustMatter * tolerance_of(data_.problem))) return std::nullopt;
    return changed;
  }

  ProblemData data_;
  std::optional<OracleOutput> expected_[2];
  std::map<std::string_view, std::optional<ProblemData>> mutated_[2];
};

class KernelSection {
 public:
  explicit KernelSection(Session& session) : s_(session) {}

  void run_all() {
    run_grid(problem_grid(), 1);
    run_grid(quantised_grid(), 4);
  }

 private:
  /// `section` keeps the seeds of the two grids apart; 2 and 3 are those of other sections.
  void run_grid(std::span<const GridRow> grid, std::uint64_t section) {
    std::uint64_t index = 0;
    for (std::size_t i = 0; i < grid.size(); ++i)
      for (const DType dtype : dtypes_of(grid[i], i)) {
        ++index;
        if (s_.options.quick && !grid[i].quick) continue;
        Task task(make_problem(grid[i], dtype, s_.device, s_.seed_of(section, index)));
        for (const auto& experts : s_.registry.experts.entries()) run_part(experts, task);
      }
  }

  void run_part(const Entry<Experts>& experts, Task& task) {
    const ProblemData& data = task.data();
    // The expert of NaN must not be chosen, and logits cannot promise that.
    if (experts.monolithic && data.picks == Picks::zero_weights) return;
    if (!s_.reporter.wants(experts.name, data.label) && !any_pair_wanted(experts, data)) return;
    if (const Support support = experts.supports(data.problem); !support) {
      s_.reporter.refused(experts.name, data.label, support.reason());
      return;
    }
    bool mutations_due = true;
    for (const auto& ends : s_.registry.prepare_finalizes.entries()) {
      if (!composable(experts, ends)) continue;
      const std::string part = experts.name + " + " + ends.name;
      if (!s_.reporter.wants(part, data.label)) continue;
      if (const Support support = ends.supports(data.problem); !support) {
        s_.reporter.refused(part, data.label, support.reason());
        continue;
      }
      if (run_pair(experts, ends, part, task) && mutations_due) {
        run_mutations(experts, ends, part, task);
        mutations_due = false;
      }
      s_.reporter.finished(part, data.label);
    }
  }

  bool any_pair_wanted(const Entry<Experts>& experts, const ProblemData& data) const {
    for (const auto& ends : s_.registry.prepare_finalizes.entries())
      if (s_.reporter.wants(experts.name + " + " + ends.name, data.label)) return true;
    return false;
  }

  /// False: it could not even be built and run.
  bool run_pair(const Entry<Experts>& experts, const Entry<PrepareFinalize>& ends, const std::string& part,
                Task& task) {
    const ProblemData& data = task.data();
    std::optional<Combination> combination;
    RunResult first;
    const std::uint64_t before = hash_of_inputs(data);
    const Outcome built = Reporter::guarded([&] {
      combination.emplace(s_.registry, experts, ends, data, s_.stream);
      first = combination->run(data, {0, data.num_tokens()}, s_.stream);
      return Outcome{};
    });
    if (!built.ok) {
      s_.reporter.add(part, data.label, "run", built);
      return false;
    }
    const bool changed = hash_of_inputs(data) != before || !first.inputs_intact;
    const Subject subject{
        data,          task.expected(experts.monolithic), *combination, first, changed, s_.stream, s_.one_thread,
        s_.two_threads};
    for (const Check& check : kernel_checks())
      s_.reporter.run(part, data.label, check.name, [&] { return check.run(subject); });
    return true;
  }

  void run_mutations(const Entry<Experts>& experts, const Entry<PrepareFinalize>& ends, const std::string& part,
                     Task& task) {
    for (const Mutation& mutation : mutations()) run_mutation(mutation, experts, ends, part, task);
    for (const Mutation& mutation : quant_mutations()) run_mutation(mutation, experts, ends, part, task);
  }

  void run_mutation(const Mutation& mutation, const Entry<Experts>& experts, const Entry<PrepareFinalize>& ends,
                    const std::string& part, Task& task) {
    const ProblemData& data = task.data();
    int& tried = tried_[experts.name + std::string(mutation.name)];
    if (tried >= kProblemsPerMutation) return;
    const ProblemData* mutated = task.mutated(mutation, experts.monolithic);
    if (mutated == nullptr || !experts.supports(mutated->problem)) return;
    RunResult result;
    try {
      Combination combination(s_.registry, experts, ends, *mutated, s_.stream);
      result = combination.run(*mutated, {0, data.num_tokens()}, s_.stream);
    } catch (const Error&) {
      return;  // Refused before it could be wrong: nothing to compare.
    }
    ++tried;
    s_.reporter.mutation(
        part, data.label, mutation.name,
        compare_with_oracle(result.output, task.expected(experts.monolithic), tolerance_of(data.problem)));
  }

  Session& s_;
  std::map<std::string, int> tried_;
};

}  // namespace

void verify_kernels(Session& session) {
  KernelSection(session).run_all();
}

}  // namespace conclave::verify_detail
