// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What N ranks in one process share: who has posted which exchange. Whoever posts the second half of a pair copies the
// messages of both, under the one lock: a rank that fails withdraws its posts under it, so nobody copies into memory
// that is gone. Slower than copying outside, and this is a simulation.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "conclave/comm.hpp"
#include "conclave/error.hpp"

namespace conclave::comm {

/// An exchange that one rank takes part in.
struct Post {
  bool used = false;
  const char* name = "";
  int channel = 0;
  std::uint64_t sequence = 0;  ///< Of its channel: pairs of equal numbers belong together.
  bool exact = true;
  int missing = 0;                 ///< Ranks that have not posted their half.
  std::vector<std::uint8_t> done;  ///< [size]: the messages to and from that rank are copied.
  std::vector<SendMessage> send;
  std::vector<ReceiveMessage> receive;
};

struct RankState {
  std::array<Post, Communicator::kMaxRequests> posts;
  std::array<std::uint64_t, Communicator::kMaxChannels> next{};
  const char* last = nullptr;  ///< The operation that it was in last.
  bool inside = false;         ///< It is in it now.
  bool returned = false;
};

class SimWorld {
 public:
  SimWorld(int size, const CommOptions& options);

  int post(int rank, const Exchange& exchange, int channel);
  bool test(int rank, int ticket);
  void wait(int rank, int ticket);
  void cancel(int rank, int ticket) noexcept;

  /// The rank has returned: nobody needs to wait for it any more.
  void leave(int rank);
  /// The rank has failed. The first failure is the one that the others report.
  void fail_rank(int rank, ErrorKind kind, std::string_view message);
  /// Rethrows the first failure, if there was one.
  void rethrow() const;

 private:
  void copy_pairs(int rank, Post& mine);
  void copy_pair(int rank, Post& mine, int peer, Post& theirs);
  Post* find(int rank, int channel, std::uint64_t sequence);
  /// Ends every wait with this message, and throws it.
  [[noreturn]] void give_up(const std::string& message);
  void throw_if_failed() const;
  void fail_if_left(int rank, const Post& mine);
  std::string missing_text(const Post& mine) const;
  std::string where(int rank) const;
  static void release(Post& post) noexcept { post.used = false; }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<RankState> ranks_;
  std::chrono::milliseconds timeout_;
  bool failed_ = false;
  ErrorKind kind_ = ErrorKind::communication;
  std::string why_;
};

}  // namespace conclave::comm
