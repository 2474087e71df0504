// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: logical ids and weights of each token. Out: one slot for each pick.
//
// Replicas hold equal bytes and experts compute a row by itself, so any choice gives each pick the same row. What it
// changes is who sums what: partial sums of a rank come before sums over ranks, and f32 addition is not associative.
// Choosing by the flat position in the batch therefore gives a token other bits in other company. Here the choice is a
// hash of what the token brings along: the set of its (id, weight) pairs, and the id of the pick. Then
//   - a token has the same replicas in every batch, at every place and on every rank that sees it. The rank is left out
//     on purpose: where several ranks route the same token, each pick must be computed exactly once in all of them;
//   - a pick that is named twice goes to one replica twice, as duplicates do without replicas;
//   - tokens spread evenly: with k picks of E experts the sets rarely repeat, and where they do (k = 1) the bits of the
//     weights still differ. Tokens that are equal in both go together; `salt` tells those apart.
#include <bit>

#include "base/error.hpp"
#include "base/slot_lookup.hpp"
#include "base/tensor_format.hpp"
#include "conclave/eplb.hpp"

namespace conclave {
namespace {

/// The finaliser of SplitMix64: every input bit reaches every output bit.
std::uint64_t mix(std::uint64_t x) noexcept {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

/// A sum of hashes: the order of a token's picks does not matter.
std::uint64_t hash_of_token(const SlotLookup& expert_of, const TensorView& weights, std::int64_t token) noexcept {
  std::uint64_t sum = 0;
  for (std::int64_t pick = 0; pick < expert_of.top_k(); ++pick) {
    const std::int64_t expert = expert_of(token, pick);
    if (expert < 0) continue;
    const float weight = weights.as<float>()[token * weights.stride(0) + pick * weights.stride(1)];
    sum += mix((static_cast<std::uint64_t>(expert) << 32) ^ std::bit_cast<std::uint32_t>(weight));
  }
  return sum;
}

void check_choice(const Routing& logical, const std::optional<ConstTensorView>& salt, const TensorView& physical_ids) {
  const TensorView& ids = logical.topk_ids;
  const TensorView& weights = logical.topk_weights;
  require(ids.rank == 2 && weights.rank == 2 && weights.dtype == DType::f32 && weights.shape == ids.shape,
          "topk_weights: given {}, expected f32 of the shape of topk_ids {}", weights, ids);
  require(physical_ids.dtype == DType::i32 && physical_ids.rank == 2 && physical_ids.shape == ids.shape,
          "physical_ids: given {}, expected i32 of the shape of topk_ids {}", physical_ids, ids);
  require(!salt || (salt->dtype == DType::i64 && salt->rank == 1 && salt->size(0) == ids.size(0)),
          "salt: given {}, expected i64 [{}]", salt.value_or(ConstTensorView{}), ids.size(0));
}

}  // namespace

void choose_replicas(const ExpertPlacement& placement, const Routing& logical,
                     const std::optional<ConstTensorView>& salt, const TensorView& physical_ids, Stream /*stream*/) {
  check_choice(logical, salt, physical_ids);
  const std::int64_t num_logical = placement.num_logical();
  const SlotLookup expert_of(logical.topk_ids, std::nullopt, num_logical, num_logical);
  for (std::int64_t token = 0; token < expert_of.num_tokens(); ++token) {
    std::uint64_t hash = hash_of_token(expert_of, logical.topk_weights, token);
    if (salt) hash += mix(static_cast<std::uint64_t>(salt->as<std::int64_t>()[token * salt->stride(0)]));
    for (std::int64_t pick = 0; pick < expert_of.top_k(); ++pick) {
      const std::int64_t expert = expert_of(token, pick);
      std::int32_t slot = -1;
      if (expert >= 0) {
        const auto count = static_cast<std::uint64_t>(placement.replica_count[static_cast<std::size_t>(expert)]);
        const std::uint64_t choice = mix(hash ^ static_cast<std::uint64_t>(expert)) % count;
        slot = placement.logical_to_physical[static_cast<std::size_t>(expert * placement.max_replicas) + choice];
      }
      physical_ids.as<std::int32_t>()[token * physical_ids.stride(0) + pick * physical_ids.stride(1)] = slot;
    }
  }
}

}  // namespace conclave
