// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Walks the ordered lists. Experts decide: the first that fits and for which a prepare/finalize of the same format and
// kind fits; one that answers Support::slower() only if nothing else does. Every candidate is asked, also after the
// winner, so that the report is complete.
#include "kernel/select.hpp"

#include "base/error.hpp"
#include "kernel/lower.hpp"

namespace conclave {
namespace {

constexpr const char* kLost = "fits; after the winner in the list";

template <class Part>
void require_registered(const PartList<Part>& list, const std::string& name, const char* stage) {
  if (name.empty() || list.find(name) != nullptr) return;
  std::string known;
  for (const auto& entry : list.entries()) known += (known.empty() ? "" : ", ") + entry.name;
  fail(ErrorKind::invalid_argument, "unknown {} part \"{}\"; registered: {}", stage, name, known);
}

std::string kind_of(ActivationFormat format, bool monolithic) {
  return fmt::format("{} {}", monolithic ? "monolithic" : "modular", name_of(format));
}

/// Asks an entry of the two stages that can be monolithic.
template <class Part>
Support ask(const Entry<Part>& entry, const Problem& layer, const std::string& pinned) {
  if (!pinned.empty() && entry.name != pinned) return Support::no(fmt::format("{} was asked for", pinned));
  if (!entry.monolithic) return entry.supports(modular_problem(layer));
  if (auto reason = monolithic_refusal(layer)) return Support::no(*reason);
  return entry.supports(monolithic_problem(layer));
}

template <class Part>
StagePlan ask_all(const PartList<Part>& list, const Problem& layer, const std::string& pinned) {
  StagePlan stage;
  for (const auto& entry : list.entries()) {
    const Support support = ask(entry, layer, pinned);
    stage.candidates.push_back({entry.name, static_cast<bool>(support), support.reason()});
  }
  return stage;
}

/// Index of the first candidate for which `can(index)`, those without a reason to be slower first; -1: none.
template <class Can>
int first_choice(const StagePlan& stage, Can&& can) {
  for (const bool slower : {false, true})
    for (std::size_t i = 0; i < stage.candidates.size(); ++i)
      if (can(i) && stage.candidates[i].fits && stage.candidates[i].reason.empty() != slower)
        return static_cast<int>(i);
  return -1;
}

/// Names the choice, and tells the others that fit why it was not them.
void choose(StagePlan& stage, int index) {
  if (index < 0) return;
  stage.chosen = stage.candidates[static_cast<std::size_t>(index)].name;
  for (Candidate& c : stage.candidates)
    if (c.fits && c.name != stage.chosen && c.reason.empty()) c.reason = kLost;
}

StagePlan select_router(const Problem& layer, const Registry& registry, const std::string& pinned) {
  StagePlan stage;
  for (const auto& entry : registry.routers.entries()) {
    const Support support = !pinned.empty() && entry.name != pinned
                                ? Support::no(fmt::format("{} was asked for", pinned))
                                : entry.supports(layer);
    stage.candidates.push_back({entry.name, static_cast<bool>(support), support.reason()});
  }
  choose(stage, first_choice(stage, [](std::size_t) { return true; }));
  return stage;
}

/// The first prepare/finalize that fits the problem and these experts; its index, or -1.
int partner_of(const Entry<Experts>& experts, const Registry& registry, const StagePlan& stage) {
  const auto entries = registry.prepare_finalizes.entries();
  return first_choice(stage, [&](std::size_t i) { return composable(experts, entries[i]); });
}

/// Once the winner is known: why the prepare/finalizes that fit the problem were not taken.
void explain_partners(const Entry<Experts>& experts, const Registry& registry, StagePlan& stage) {
  const auto entries = registry.prepare_finalizes.entries();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    Candidate& candidate = stage.candidates[i];
    if (!candidate.fits || candidate.name == stage.chosen) continue;
    if (composable(experts, entries[i]) && !candidate.reason.empty()) continue;  // It has said what slows it.
    const bool same = entries[i].format == experts.format && entries[i].monolithic == experts.monolithic;
    candidate.reason =
        composable(experts, entries[i]) ? kLost
        : same
            ? fmt::format("fits the problem, but finalizes and {} leaves that to the consumer", experts.name)
            : fmt::format("fits the problem, but is {} and {} is {}", kind_of(entries[i].format, entries[i].monolithic),
                          experts.name, kind_of(experts.format, experts.monolithic));
  }
}

}  // namespace

Selection select(const Problem& problem, const Registry& registry, const PlanOptions& options) {
  require_registered(registry.routers, options.router, "router");
  require_registered(registry.prepare_finalizes, options.prepare_finalize, "prepare/finalize");
  require_registered(registry.experts, options.experts, "experts");

  Selection s;
  s.router = select_router(problem, registry, options.router);
  s.prepare_finalize = ask_all(registry.prepare_finalizes, problem, options.prepare_finalize);
  s.experts = ask_all(registry.experts, problem, options.experts);
  const auto entries = registry.experts.entries();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    Candidate& candidate = s.experts.candidates[i];
    if (!candidate.fits || partner_of(entries[i], registry, s.prepare_finalize) >= 0) continue;
    candidate.fits = false;
    candidate.reason =
        fmt::format("no prepare/finalize fits that is {}", kind_of(entries[i].format, entries[i].monolithic));
  }
  const int winner = first_choice(s.experts, [](std::size_t) { return true; });
  if (winner < 0) return s;
  const Entry<Experts>& experts = entries[static_cast<std::size_t>(winner)];
  const int partner = partner_of(experts, registry, s.prepare_finalize);
  choose(s.experts, winner);
  s.prepare_finalize.chosen = s.prepare_finalize.candidates[static_cast<std::size_t>(partner)].name;
  explain_partners(experts, registry, s.prepare_finalize);
  return s;
}

}  // namespace conclave
