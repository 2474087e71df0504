// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The bookkeeping of replicas.hpp; the algorithms are src/eplb's.
#include "kernel/replicas.hpp"

#include "base/error.hpp"
#include "base/tensor_format.hpp"

namespace conclave {
namespace {

/// Passes that count. A decode step is a pass: seconds to a minute of traffic, long enough to be a trend and short
/// enough to follow one.
constexpr std::int64_t kLoadWindow = 1000;

EplbConfig eplb_config(const Problem& layer) {
  EplbConfig config;
  config.num_logical = layer.moe.num_weight_experts();
  config.num_physical = num_slots_of_experts(layer);
  config.num_ranks = layer.parallel.ep_size;
  config.num_groups = layer.moe.routing.num_expert_group;
  return config;
}

}  // namespace

std::int64_t num_slots_of_experts(const Problem& layer) noexcept {
  return layer.moe.num_weight_experts() + (layer.parallel.enable_eplb ? layer.parallel.num_redundant_experts : 0);
}

void validate_replicas(const Problem& layer) {
  const ParallelConfig& p = layer.parallel;
  require(p.num_redundant_experts >= 0, "num_redundant_experts: given {}, expected 0 or more", p.num_redundant_experts);
  require(p.enable_eplb || p.num_redundant_experts == 0,
          "num_redundant_experts: given {} without enable_eplb, expected 0", p.num_redundant_experts);
  if (!p.enable_eplb) return;
  require(p.use_ep && p.ep_size > 1, "enable_eplb: given with ep_size {}, expected experts over several ranks",
          p.ep_size);
  require(p.placement == Placement::linear, "enable_eplb: given with {} placement, expected linear: slots are in order",
          name_of(p.placement));
  validate(eplb_config(layer));
}

Replicas::Replicas(const Problem& layer)
    : config_(eplb_config(layer)), placement_(initial_placement(config_)), load_(config_.num_physical, kLoadWindow) {}

void Replicas::choose(const Routing& logical, const TensorView& physical_ids, Stream stream) {
  choose_replicas(placement_, logical, std::nullopt, physical_ids, stream);
  load_.record(physical_ids);
  load_.next_pass();
}

std::pair<ExpertPlacement, std::string> Replicas::propose(Communicator& communicator) const {
  const std::vector<double> load = logical_load(placement_, load_.physical(), communicator);
  ExpertPlacement next = rebalance(config_, load, placement_);
  std::string report = rebalance_report(config_, load, placement_, next);
  return {std::move(next), std::move(report)};
}

void Replicas::adopt(ExpertPlacement next) {
  placement_ = std::move(next);
  load_.clear();
}

}  // namespace conclave
