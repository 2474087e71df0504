// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a load for each logical expert. Out: a placement that evens it out. The method is that of DeepSeek's EPLB: pack
// groups onto nodes, replicate inside a node, pack replicas onto ranks; without groups, one node is everything.
// Greedy, and total: any load, all zeros included, gives a placement. Ties are broken by counts and then by index, so
// every rank that computes it gets the same.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.hpp"
#include "eplb/align.hpp"

namespace conclave {
namespace eplb {
namespace {

/// Items to `num_bins` bins with equally many items in each: heaviest item first, each to the lightest bin that has
/// room; equally light bins are taken by fewer items, then by index. Returns the bin of each item.
std::vector<std::int64_t> pack(const std::vector<double>& weight, std::int64_t num_bins) {
  const std::size_t room = weight.size() / static_cast<std::size_t>(num_bins);
  std::vector<std::size_t> order(weight.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return weight[a] > weight[b]; });
  std::vector<double> total(static_cast<std::size_t>(num_bins), 0.0);
  std::vector<std::size_t> used(static_cast<std::size_t>(num_bins), 0);
  std::vector<std::int64_t> bin_of(weight.size());
  for (std::size_t item : order) {
    std::size_t best = total.size();
    for (std::size_t bin = 0; bin < total.size(); ++bin) {
      if (used[bin] == room) continue;
      const bool first = best == total.size();
      if (first || total[bin] < total[best] || (total[bin] == total[best] && used[bin] < used[best])) best = bin;
    }
    total[best] += weight[item];
    ++used[best];
    bin_of[item] = static_cast<std::int64_t>(best);
  }
  return bin_of;
}

/// Replicas of each expert for `num_slots` slots: one each, then one at a time to the largest share. Of equal shares
/// the one with fewer replicas, then the lower index: without any load, slots are dealt out evenly.
std::vector<std::int64_t> replicate(const std::vector<double>& load, std::int64_t num_slots) {
  std::vector<std::int64_t> count(load.size(), 1);
  const auto share = [&](std::size_t e) { return load[e] / static_cast<double>(count[e]); };
  for (auto given = static_cast<std::int64_t>(load.size()); given < num_slots; ++given) {
    std::size_t best = 0;
    for (std::size_t e = 1; e < load.size(); ++e)
      if (share(e) > share(best) || (share(e) == share(best) && count[e] < count[best])) best = e;
    ++count[best];
  }
  return count;
}

/// Places `experts` on the `num_ranks` ranks from `first_rank` on.
void place(const std::vector<std::int32_t>& experts, std::span<const double> load, std::int64_t num_slots,
           std::int64_t num_ranks, std::int64_t first_rank, RankExperts& out) {
  std::vector<double> own;
  for (std::int32_t e : experts) own.push_back(load[static_cast<std::size_t>(e)]);
  const std::vector<std::int64_t> count = replicate(own, num_slots);
  std::vector<std::int32_t> replicas;
  std::vector<double> shares;
  for (std::size_t i = 0; i < experts.size(); ++i) {
    replicas.insert(replicas.end(), static_cast<std::size_t>(count[i]), experts[i]);
    shares.insert(shares.end(), static_cast<std::size_t>(count[i]), own[i] / static_cast<double>(count[i]));
  }
  const std::vector<std::int64_t> rank_of = pack(shares, num_ranks);
  for (std::size_t i = 0; i < replicas.size(); ++i)
    out[static_cast<std::size_t>(first_rank + rank_of[i])].push_back(replicas[i]);
}

/// Experts of each node; of the only one where groups play no part.
std::vector<std::vector<std::int32_t>> experts_of_nodes(const EplbConfig& c, std::span<const double> load,
                                                        std::int64_t num_nodes) {
  const std::int64_t num_groups = num_nodes > 1 ? c.num_groups : 1;
  const std::int64_t group_size = c.num_logical / num_groups;
  std::vector<double> weight(static_cast<std::size_t>(num_groups), 0.0);
  for (std::int64_t e = 0; e < c.num_logical; ++e)
    weight[static_cast<std::size_t>(e / group_size)] += load[static_cast<std::size_t>(e)];
  const std::vector<std::int64_t> node_of = pack(weight, num_nodes);
  std::vector<std::vector<std::int32_t>> experts(static_cast<std::size_t>(num_nodes));
  for (std::int64_t e = 0; e < c.num_logical; ++e)
    experts[static_cast<std::size_t>(node_of[static_cast<std::size_t>(e / group_size)])].push_back(
        static_cast<std::int32_t>(e));
  return experts;
}

void check_load(const EplbConfig& config, std::span<const double> load) {
  require(static_cast<std::int64_t>(load.size()) == config.num_logical,
          "load: given {} values, expected num_logical {}", load.size(), config.num_logical);
  for (std::size_t e = 0; e < load.size(); ++e)
    require(std::isfinite(load[e]) && load[e] >= 0, "load: given {} for expert {}, expected a number of at least 0",
            load[e], e);
}

}  // namespace
}  // namespace eplb

ExpertPlacement rebalance(const EplbConfig& config, std::span<const double> load, const ExpertPlacement& current) {
  validate(config);
  eplb::check_load(config, load);
  require(current.num_logical() == config.num_logical && current.num_physical() == config.num_physical &&
              current.num_ranks == config.num_ranks,
          "current placement: {} experts in {} slots on {} ranks, expected {} in {} on {}", current.num_logical(),
          current.num_physical(), current.num_ranks, config.num_logical, config.num_physical, config.num_ranks);
  const std::int64_t num_nodes = eplb_policy_of(config) == EplbPolicy::hierarchical ? config.num_nodes : 1;
  const std::int64_t ranks_of_node = config.num_ranks / num_nodes;
  eplb::RankExperts wanted(static_cast<std::size_t>(config.num_ranks));
  const auto experts = eplb::experts_of_nodes(config, load, num_nodes);
  for (std::int64_t node = 0; node < num_nodes; ++node)
    eplb::place(experts[static_cast<std::size_t>(node)], load, config.num_physical / num_nodes, ranks_of_node,
                node * ranks_of_node, wanted);
  ExpertPlacement target = make_placement(config, eplb::align(std::move(wanted), current, ranks_of_node));
  // Greedy packing can lose to what is there, and moving weights for nothing costs more than it brings.
  return balance_of(target, load).max < balance_of(current, load).max ? target : current;
}

}  // namespace conclave
