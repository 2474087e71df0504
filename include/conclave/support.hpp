// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The answer of a part to "can you run this problem?": yes, or one sentence that names the value in the way; or yes
// with a sentence why a part further down the list does it better on this machine.
#pragma once

#include <string>
#include <utility>

namespace conclave {

class Support {
 public:
  static Support yes() { return Support(); }
  /// `reason` completes "NAME cannot run this: ...", e.g. "hidden_size 2880 is not a multiple of 128".
  static Support no(std::string reason) {
    Support s;
    s.reason_ = std::move(reason);
    s.ok_ = false;
    return s;
  }
  /// Runs it, but is chosen only where it is asked for or nothing else fits. `reason` says what makes it slower here.
  static Support slower(std::string reason) {
    Support s;
    s.reason_ = std::move(reason);
    return s;
  }
  explicit operator bool() const noexcept { return ok_; }
  bool preferred() const noexcept { return ok_ && reason_.empty(); }
  const std::string& reason() const noexcept { return reason_; }

 private:
  bool ok_ = true;
  std::string reason_;
};

/// The first refusal of several checks; the order of the arguments is the order of the reasons. A check that may answer
/// slower() comes last.
template <class... Rest>
Support first_refusal(Support first, Rest... rest) {
  if (!first) return first;
  if constexpr (sizeof...(rest) == 0) {
    return first;
  } else {
    return first_refusal(std::move(rest)...);
  }
}

}  // namespace conclave
