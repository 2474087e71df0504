// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Conformance: every registered combination against the reference, on a grid of problems, with poisoned buffers,
// bitwise repeat, batch invariance, and mutations that must be caught. `conclave verify` prints it; a kernel author
// runs it from a test program of its own over a registry that holds the new part.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "conclave/registry.hpp"
#include "conclave/stream.hpp"

namespace conclave {

struct VerifyOptions {
  bool quick = false;      ///< A tenth of the grid.
  std::string filter;      ///< Only combinations whose label contains this text.
  std::uint64_t seed = 1;  ///< Of every random tensor; printed with each failure.
  /// Called after each combination, for progress.
  std::function<void(const std::string& label)> progress;
};

enum class Verdict : std::uint8_t { passed, failed, refused };

struct VerifyRow {
  std::string part;     ///< "experts/cpu_f32_avx2"
  std::string problem;  ///< "silu gate_up bias f32 E8 k2 H40 I24 M37"
  std::string check;    ///< "reference", "repeat", "batch_invariance", "mutation:swapped_gate_up", ...
  Verdict verdict = Verdict::passed;
  double error = 0;     ///< Relative error where the check measures one.
  std::string message;  ///< Why it failed, or the refusal.
};

struct VerifyReport {
  std::vector<VerifyRow> rows;
  std::int64_t passed = 0, failed = 0, refused = 0;
  std::int64_t mutations = 0, mutations_caught = 0;
  bool ok() const noexcept { return failed == 0 && mutations == mutations_caught; }
};

/// With a GPU as `device` and its stream, the parts that run there get copies of every tensor; problems and answers
/// stay on the host, and the checks of threads and of ranks are left out.
VerifyReport verify(const Registry& registry, const DeviceFacts& device, Stream stream, const VerifyOptions& options);

/// ||a - b|| / ||b|| over all elements (both zero: 0; a NaN on either side that the other lacks: infinity).
double relative_error(const ConstTensorView& a, const ConstTensorView& b);
/// The largest |a - b|, with the same rule for NaN.
double max_abs_error(const ConstTensorView& a, const ConstTensorView& b);

}  // namespace conclave
