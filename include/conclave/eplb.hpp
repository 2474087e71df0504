// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Expert-parallel load balancing: more slots than experts, so that an expert with many tokens has replicas on several
// ranks. Logical experts are what routers name; physical experts are slots, slots_per_rank() to a rank, rank 0 first.
//   record(physical ids) -> load -> rebalance() -> plan_exchange() -> exchange_weights()
// Everything is a pure function of its arguments, so ranks that agree on the load agree on the rest without a word.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "conclave/comm.hpp"
#include "conclave/flow.hpp"
#include "conclave/stream.hpp"
#include "conclave/tensor.hpp"

namespace conclave {

struct EplbConfig {
  std::int64_t num_logical = 0;
  std::int64_t num_physical = 0;  ///< num_logical plus redundant slots; a multiple of num_ranks.
  std::int64_t num_ranks = 1;
  std::int64_t num_nodes = 1;   ///< Ranks of a node are neighbours.
  std::int64_t num_groups = 1;  ///< Of the routing rule (num_expert_group): consecutive logical ids.

  std::int64_t slots_per_rank() const noexcept { return num_physical / num_ranks; }
  std::int64_t max_replicas() const noexcept { return num_physical - num_logical + 1; }
};

/// Throws Error naming the first value that breaks a rule: fewer slots than experts or ranks, slots that the ranks do
/// not divide, ranks that the nodes do not divide.
void validate(const EplbConfig& config);

enum class EplbPolicy : std::uint8_t {
  global,        ///< Any slot may hold any expert.
  hierarchical,  ///< Groups stay whole on a node, so that a token with few groups visits few nodes.
};
/// Hierarchical where there are several nodes that divide the groups, and groups that divide the experts.
EplbPolicy eplb_policy_of(const EplbConfig& config) noexcept;
std::string_view name_of(EplbPolicy policy) noexcept;

/// Which slot holds which expert. Every expert has at least one slot.
struct ExpertPlacement {
  std::int64_t num_ranks = 1;
  std::int64_t max_replicas = 1;                  ///< EplbConfig::max_replicas(): the width stays, whatever is placed.
  std::vector<std::int32_t> physical_to_logical;  ///< [P]
  std::vector<std::int32_t> logical_to_physical;  ///< [L, max_replicas]: ascending slots, then -1
  std::vector<std::int32_t> replica_count;        ///< [L]

  std::int64_t num_logical() const noexcept { return static_cast<std::int64_t>(replica_count.size()); }
  std::int64_t num_physical() const noexcept { return static_cast<std::int64_t>(physical_to_logical.size()); }
  std::int64_t slots_per_rank() const noexcept { return num_physical() / num_ranks; }
  std::int64_t rank_of(std::int64_t physical) const noexcept { return physical / slots_per_rank(); }
  bool operator==(const ExpertPlacement&) const = default;
};

/// The maps that follow from the first. Throws Error on another length, an id out of range, an expert without a slot.
ExpertPlacement make_placement(const EplbConfig& config, std::vector<std::int32_t> physical_to_logical);
/// Before anything is known: experts in order, then the first experts again.
ExpertPlacement initial_placement(const EplbConfig& config);

/// The placement for a load (tokens, or any weight, for each logical expert), laid over `current` so that what stays on
/// its rank stays in its slot. `current` itself where no rank's load would fall below the largest that it has now.
///   1. hierarchical: groups to nodes, heaviest first, each to the lightest node that has room
///   2. one more slot at a time for the expert with the most load for each replica
///   3. replicas to ranks, as groups to nodes
ExpertPlacement rebalance(const EplbConfig& config, std::span<const double> load, const ExpertPlacement& current);

/// How evenly a load falls on ranks, each replica taking its share.
struct EplbBalance {
  std::vector<double> rank_load;
  double mean = 0;
  double max = 0;
  /// 1: perfect; 1 / ranks: one rank has everything. 1 without any load.
  double balancedness() const noexcept { return max > 0 ? mean / max : 1.0; }
};
EplbBalance balance_of(const ExpertPlacement& placement, std::span<const double> load);

/// Counts routed slots of the last `window` passes. Nothing but the constructor allocates.
class EplbLoad {
 public:
  EplbLoad(std::int64_t num_physical, std::int64_t window);

  /// Adds one pass's ids, i32 or i64 [M, k], to the current pass; -1 and ids out of range count nowhere. Rows behind
  /// `num_valid_tokens` (padding) are not looked at; negative: all are valid.
  void record(const ConstTensorView& physical_ids, std::int64_t num_valid_tokens = -1);
  /// The current pass is over; the oldest one leaves the window once it is full.
  void next_pass() noexcept;
  /// Forgets everything: slots mean other experts after an exchange.
  void clear() noexcept;

  std::span<const std::int64_t> physical() const noexcept { return total_; }

 private:
  std::vector<std::int64_t> total_;   ///< [P]
  std::vector<std::int64_t> passes_;  ///< [window, P]
  std::int64_t window_;
  std::int64_t now_ = 0;
};

/// Tokens of each logical expert: the sum over its replicas.
std::vector<double> logical_load(const ExpertPlacement& placement, std::span<const std::int64_t> physical_load);
/// The same, of all ranks together and equal on all of them.
std::vector<double> logical_load(const ExpertPlacement& placement, std::span<const std::int64_t> physical_load,
                                 Communicator& communicator);

/// Logical ids -> physical ids [M, k], i32 both; -1 and ids out of range become -1. A token's replica follows from its
/// own ids and weights (and `salt` i64 [M] where given), never from its place in the batch or its rank: choice.cpp
/// argues why. `salt`: anything that belongs to the token, such as its position in its sequence; only top-1 routing
/// with equal weights needs it, where tokens have nothing else to tell them apart.
void choose_replicas(const ExpertPlacement& placement, const Routing& logical,
                     const std::optional<ConstTensorView>& salt, const TensorView& physical_ids, Stream stream);

/// One expert's bytes over the wire.
struct EplbMove {
  std::int32_t expert = 0;
  std::int32_t from_rank = 0, from_slot = 0;  ///< Slots are local: [0, slots_per_rank).
  std::int32_t to_rank = 0, to_slot = 0;
  std::int32_t round = 0;  ///< Moves of one round have different (from_rank, to_rank).
  bool operator==(const EplbMove&) const = default;
};
/// A replica that its own rank can make, once the moves are done.
struct EplbCopy {
  std::int32_t rank = 0, from_slot = 0, to_slot = 0;
  bool operator==(const EplbCopy&) const = default;
};
struct EplbExchange {
  std::vector<EplbMove> moves;
  std::vector<EplbCopy> copies;
  std::int32_t num_rounds = 0;
};

/// No expert comes to a rank that has it already, and none comes twice. Senders: a rank of the receiver's node where
/// there is one, then the one with the fewest moves so far. Throws Error unless both placements have the same sizes and
/// what stays on its rank stays in its slot, as in what rebalance() returns.
EplbExchange plan_exchange(const EplbConfig& config, const ExpertPlacement& current, const ExpertPlacement& target);

/// Carries the plan out on this rank, in place: addresses stay. `tensors`: every tensor with one entry for each slot
/// ([slots_per_rank, ...], entries contiguous; scales and biases too). All ranks call it with the same plan and with
/// tensors of the same shapes. Memory for the largest tensor's arriving entries is allocated and freed.
void exchange_weights(const EplbExchange& plan, std::span<const TensorView> tensors, Communicator& communicator);

/// Several lines for a person: policy, replicas, balance before and after, what has to move.
std::string rebalance_report(const EplbConfig& config, std::span<const double> load, const ExpertPlacement& before,
                             const ExpertPlacement& after);

}  // namespace conclave
