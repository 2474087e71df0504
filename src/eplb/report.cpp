// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a load and two placements. Out: text for a person.
#include <fmt/format.h>

#include <algorithm>

#include "conclave/eplb.hpp"

namespace conclave {
namespace {

std::string balance_line(const char* when, const EplbBalance& b) {
  return fmt::format("{}: largest rank {:.0f} of mean {:.0f} tokens, balancedness {:.3f}\n", when, b.max, b.mean,
                     b.balancedness());
}

}  // namespace

std::string rebalance_report(const EplbConfig& config, std::span<const double> load, const ExpertPlacement& before,
                             const ExpertPlacement& after) {
  const EplbExchange exchange = plan_exchange(config, before, after);
  const auto most = std::max_element(after.replica_count.begin(), after.replica_count.end());
  std::string text = fmt::format("experts: {} in {} slots on {} ranks, {} policy; most replicas {} (expert {})\n",
                                 config.num_logical, config.num_physical, config.num_ranks,
                                 name_of(eplb_policy_of(config)), *most, most - after.replica_count.begin());
  text += balance_line("before", balance_of(before, load));
  text += balance_line("after", balance_of(after, load));
  text += fmt::format("to move: {} of {} slots between ranks, {} within a rank\n", exchange.moves.size(),
                      config.num_physical, exchange.copies.size());
  return text;
}

}  // namespace conclave
