// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What is demanded of every combination on every problem: a table of named checks. Each takes the same subject and
// answers in one outcome; a new check is one function and one line.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "verify/combination.hpp"
#include "verify/oracle.hpp"

namespace conclave::verify_detail {

struct Outcome {
  bool ok = true;
  double error = 0;     ///< Where the check measures one.
  std::string message;  ///< Why not.
  bool applies = true;  ///< False: this problem has nothing that the check could look at.

  static Outcome skip() { return {true, 0, {}, false}; }
  static Outcome failed(std::string why, double error = 0) { return {false, error, std::move(why), true}; }
};

/// One combination with the right answer of its problem and its first result.
struct Subject {
  const ProblemData& data;
  const OracleOutput& expected;
  Combination& combination;
  const RunResult& first;
  bool inputs_changed_by_first = false;
  Stream stream;      ///< The caller's.
  Stream one_thread;  ///< Others to compare with.
  Stream two_threads;
};

struct Check {
  std::string_view name;
  Outcome (*run)(const Subject& subject);
};
std::span<const Check> kernel_checks() noexcept;

/// The comparison behind the check "reference", and behind every mutation.
Outcome compare_with_oracle(const ConstTensorView& output, const OracleOutput& expected, double tolerance);

/// Over every tensor that a kernel may read but not write.
std::uint64_t hash_of_inputs(const ProblemData& data);

}  // namespace conclave::verify_detail
