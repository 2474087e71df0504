// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The sections of a conformance run. Each walks one kind of part and adds its rows to the report.
#pragma once

#include "conclave/registry.hpp"
#include "verify/report.hpp"

namespace conclave::verify_detail {

/// What every section works with.
struct Session {
  const Registry& registry;
  const DeviceFacts& device;
  Stream stream;
  Stream one_thread;
  Stream two_threads;
  const VerifyOptions& options;
  Reporter& reporter;

  /// The seed of problem `index` of section `section`: problems differ, and one alone can be repeated.
  std::uint64_t seed_of(std::uint64_t section, std::uint64_t index) const noexcept {
    return options.seed + (section << 32) + index * 0x9e3779b97f4a7c15ULL;
  }
};

/// Experts x prepare/finalize over the problem grid: all checks and the mutations.
void verify_kernels(Session& session);
/// Every router over every routing method, against the rule.
void verify_routers(Session& session);
/// Whole layers (shared and zero experts, latent projections, factors) with each experts part pinned.
void verify_layers(Session& session);
/// Experts x exchanges over simulated ranks, quantised weights included.
void verify_ranks(Session& session);
/// Whole layers over simulated ranks, in micro-batches, and with their last reductions left to the tail.
void verify_layers_over_ranks(Session& session);
/// Each field of the problem flipped under each experts part: the result changes, or somebody refuses.
void verify_flipped_fields(Session& session);

}  // namespace conclave::verify_detail
