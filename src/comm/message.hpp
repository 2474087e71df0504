// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// One message inside one process. In: what is sent and the room for it. Out: a copy, or the reason why it does not fit.
#pragma once

#include <cstring>
#include <string>

#include "base/error.hpp"
#include "conclave/comm.hpp"

namespace conclave::comm {

inline bool fits(const SendMessage& from, const ReceiveMessage& to, bool exact) noexcept {
  return exact ? from.bytes == to.bytes : from.bytes <= to.bytes;
}

inline std::string misfit_text(const char* name, int sender, const SendMessage& from, int receiver,
                               const ReceiveMessage& to, bool exact) {
  return fmt::format("{}: rank {} sends {} bytes to rank {}, which expects {}{}", name, sender, from.bytes, receiver,
                     exact ? "" : "at most ", to.bytes);
}

inline void require_fit(const char* name, int sender, const SendMessage& from, int receiver, const ReceiveMessage& to,
                        bool exact) {
  if (!fits(from, to, exact))
    throw Error(ErrorKind::communication, misfit_text(name, sender, from, receiver, to, exact));
}

inline void copy_message(const SendMessage& from, const ReceiveMessage& to) noexcept {
  if (from.bytes > 0) std::memcpy(to.data, from.data, static_cast<std::size_t>(from.bytes));
}

}  // namespace conclave::comm
