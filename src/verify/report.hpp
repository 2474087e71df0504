// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Collects rows of a report, counts them, and turns exceptions of parts into failures.
#pragma once

#include <map>
#include <string>

#include "conclave/verify.hpp"
#include "verify/checks.hpp"

namespace conclave::verify_detail {

class Reporter {
 public:
  Reporter(VerifyReport& report, const VerifyOptions& options) : report_(report), options_(options) {}

  /// False: the filter leaves this combination out.
  bool wants(const std::string& part, const std::string& problem) const;
  void refused(const std::string& part, const std::string& problem, const std::string& reason);
  void add(const std::string& part, const std::string& problem, std::string_view check, const Outcome& outcome);
  /// Runs `check`; what it throws is a failure.
  template <class F>
  void run(const std::string& part, const std::string& problem, std::string_view check, F&& f) {
    add(part, problem, check, guarded(f));
  }
  /// `comparison` is what the check said about the mutated result: the mutation is caught if it failed.
  void mutation(const std::string& part, const std::string& problem, std::string_view name, const Outcome& comparison);
  /// The same for what `judge` says of a run with the mistake. A mistake that did not run to its end was not caught.
  template <class F>
  void mutation_run(const std::string& part, const std::string& problem, std::string_view name, F&& judge) {
    try {
      mutation(part, problem, name, judge());
    } catch (const std::exception& error) {
      ++report_.mutations;
      add(part, problem, "mutation:" + std::string(name), Outcome::failed(std::string("threw: ") + error.what()));
    }
  }
  void finished(const std::string& part, const std::string& problem) const;

  template <class F>
  static Outcome guarded(F&& f) {
    try {
      return f();
    } catch (const std::exception& error) {
      return Outcome::failed(std::string("threw: ") + error.what());
    }
  }

 private:
  VerifyReport& report_;
  const VerifyOptions& options_;
};

}  // namespace conclave::verify_detail
