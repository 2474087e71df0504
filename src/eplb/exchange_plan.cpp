// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: two placements. Out: which bytes go where. What is on a rank already never travels; of several senders the near
// one goes first, then the one that has sent least.
#include <algorithm>
#include <map>
#include <utility>

#include "base/error.hpp"
#include "conclave/eplb.hpp"

namespace conclave {
namespace {

class Planner {
 public:
  Planner(const EplbConfig& config, const ExpertPlacement& current, const ExpertPlacement& target)
      : current_(current),
        target_(target),
        ranks_of_node_(config.num_ranks / config.num_nodes),
        sent_(static_cast<std::size_t>(config.num_ranks), 0) {}

  EplbExchange make() {
    for (std::int64_t rank = 0; rank < target_.num_ranks; ++rank) plan_rank(rank);
    return std::move(plan_);
  }

 private:
  std::int32_t held(const ExpertPlacement& placement, std::int64_t rank, std::int64_t slot) const {
    return placement.physical_to_logical[static_cast<std::size_t>(rank * placement.slots_per_rank() + slot)];
  }
  std::int64_t slot_with(const ExpertPlacement& placement, std::int64_t rank, std::int32_t expert) const {
    for (std::int64_t slot = 0; slot < placement.slots_per_rank(); ++slot)
      if (held(placement, rank, slot) == expert) return slot;
    return -1;
  }
  bool stays(std::int64_t rank, std::int64_t slot) const {
    return held(current_, rank, slot) == held(target_, rank, slot);
  }

  void plan_rank(std::int64_t rank) {
    std::map<std::int32_t, std::int64_t> present;  // Expert -> the slot that has it once the moves are done.
    for (std::int64_t slot = 0; slot < target_.slots_per_rank(); ++slot)
      if (stays(rank, slot)) present.try_emplace(held(target_, rank, slot), slot);
    for (std::int64_t slot = 0; slot < target_.slots_per_rank(); ++slot) {
      if (stays(rank, slot)) continue;
      const std::int32_t expert = held(target_, rank, slot);
      if (const auto found = present.find(expert); found != present.end()) {
        plan_.copies.push_back({static_cast<std::int32_t>(rank), static_cast<std::int32_t>(found->second),
                                static_cast<std::int32_t>(slot)});
        continue;
      }
      const std::int64_t before = slot_with(current_, rank, expert);
      require(before < 0,
              "target placement: expert {} goes from slot {} to {} of rank {}, expected to stay in its slot", expert,
              before, slot, rank);
      add_move(expert, rank, slot);
      present.emplace(expert, slot);
    }
  }

  void add_move(std::int32_t expert, std::int64_t rank, std::int64_t slot) {
    const std::int64_t from = sender_of(expert, rank);
    ++sent_[static_cast<std::size_t>(from)];
    const std::int32_t round = rounds_[{from, rank}]++;
    plan_.num_rounds = std::max(plan_.num_rounds, round + 1);
    plan_.moves.push_back({expert, static_cast<std::int32_t>(from),
                           static_cast<std::int32_t>(slot_with(current_, from, expert)),
                           static_cast<std::int32_t>(rank), static_cast<std::int32_t>(slot), round});
  }

  std::int64_t sender_of(std::int32_t expert, std::int64_t to) const {
    std::int64_t best = -1;
    const auto cost = [&](std::int64_t rank) {
      return std::pair(rank / ranks_of_node_ != to / ranks_of_node_, sent_[static_cast<std::size_t>(rank)]);
    };
    for (std::int64_t i = 0; i < current_.replica_count[static_cast<std::size_t>(expert)]; ++i) {
      const std::int64_t rank =
          current_.rank_of(current_.logical_to_physical[static_cast<std::size_t>(expert * current_.max_replicas + i)]);
      if (best < 0 || cost(rank) < cost(best)) best = rank;
    }
    return best;
  }

  const ExpertPlacement& current_;
  const ExpertPlacement& target_;
  std::int64_t ranks_of_node_;
  std::vector<std::int64_t> sent_;
  std::map<std::pair<std::int64_t, std::int64_t>, std::int32_t> rounds_;
  EplbExchange plan_;
};

}  // namespace

EplbExchange plan_exchange(const EplbConfig& config, const ExpertPlacement& current, const ExpertPlacement& target) {
  validate(config);
  for (const ExpertPlacement* p : {&current, &target})
    require(p->num_ranks == config.num_ranks && p->num_physical() == config.num_physical &&
                p->num_logical() == config.num_logical,
            "placement: {} experts in {} slots on {} ranks, expected {} in {} on {}", p->num_logical(),
            p->num_physical(), p->num_ranks, config.num_logical, config.num_physical, config.num_ranks);
  return Planner(config, current, target).make();
}

}  // namespace conclave
