// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Matching of exchanges by (channel, sequence number), and failures.
#include "comm/sim_world.hpp"

#include <algorithm>
#include <cstring>

#include "base/error.hpp"
#include "comm/message.hpp"

namespace conclave::comm {

SimWorld::SimWorld(int size, const CommOptions& options)
    : ranks_(static_cast<std::size_t>(size)), timeout_(options.timeout) {
  const auto count = static_cast<std::size_t>(size);
  for (RankState& state : ranks_)
    for (Post& post : state.posts) {
      post.done.resize(count);
      post.send.resize(count);
      post.receive.resize(count);
    }
}

int SimWorld::post(int rank, const Exchange& exchange, int channel) {
  const std::lock_guard lock(mutex_);
  throw_if_failed();
  RankState& state = ranks_[static_cast<std::size_t>(rank)];
  state.last = exchange.name;
  const auto free = std::find_if(state.posts.begin(), state.posts.end(), [](const Post& p) { return !p.used; });
  if (free == state.posts.end())
    fail(ErrorKind::invalid_argument, "{}: {} exchanges of this rank are under way, expected fewer than that",
         exchange.name, state.posts.size());
  Post& mine = *free;
  mine.used = true;
  mine.name = exchange.name;
  mine.channel = channel;
  mine.sequence = state.next[static_cast<std::size_t>(channel)]++;
  mine.exact = exchange.exact;
  mine.missing = static_cast<int>(ranks_.size());
  std::fill(mine.done.begin(), mine.done.end(), std::uint8_t{0});
  std::copy(exchange.send.begin(), exchange.send.end(), mine.send.begin());
  std::copy(exchange.receive.begin(), exchange.receive.end(), mine.receive.begin());
  try {
    copy_pairs(rank, mine);
  } catch (...) {
    release(mine);
    throw;
  }
  changed_.notify_all();
  return static_cast<int>(free - state.posts.begin());
}

void SimWorld::copy_pairs(int rank, Post& mine) {
  for (int peer = 0; peer < static_cast<int>(ranks_.size()); ++peer)
    if (Post* theirs = peer == rank ? &mine : find(peer, mine.channel, mine.sequence); theirs != nullptr)
      copy_pair(rank, mine, peer, *theirs);
}

void SimWorld::copy_pair(int rank, Post& mine, int peer, Post& theirs) {
  const auto r = static_cast<std::size_t>(rank), p = static_cast<std::size_t>(peer);
  if (std::strcmp(mine.name, theirs.name) != 0)
    give_up(fmt::format("rank {} called {} where rank {} called {} (operation {} of channel {})", rank, mine.name, peer,
                        theirs.name, mine.sequence, mine.channel));
  if (!fits(mine.send[p], theirs.receive[r], theirs.exact))
    give_up(misfit_text(mine.name, rank, mine.send[p], peer, theirs.receive[r], theirs.exact));
  if (!fits(theirs.send[r], mine.receive[p], mine.exact))
    give_up(misfit_text(mine.name, peer, theirs.send[r], rank, mine.receive[p], mine.exact));
  copy_message(mine.send[p], theirs.receive[r]);
  mine.done[p] = 1;
  --mine.missing;
  if (peer == rank) return;
  copy_message(theirs.send[r], mine.receive[p]);
  theirs.done[r] = 1;
  --theirs.missing;
}

Post* SimWorld::find(int rank, int channel, std::uint64_t sequence) {
  for (Post& post : ranks_[static_cast<std::size_t>(rank)].posts)
    if (post.used && post.channel == channel && post.sequence == sequence) return &post;
  return nullptr;
}

bool SimWorld::test(int rank, int ticket) {
  const std::lock_guard lock(mutex_);
  throw_if_failed();
  Post& mine = ranks_[static_cast<std::size_t>(rank)].posts[static_cast<std::size_t>(ticket)];
  if (mine.missing > 0) {
    fail_if_left(rank, mine);
    return false;
  }
  release(mine);
  return true;
}

void SimWorld::wait(int rank, int ticket) {
  std::unique_lock lock(mutex_);
  RankState& state = ranks_[static_cast<std::size_t>(rank)];
  Post& mine = state.posts[static_cast<std::size_t>(ticket)];
  state.last = mine.name;
  state.inside = true;
  const auto deadline = std::chrono::steady_clock::now() + timeout_;
  try {
    while (mine.missing > 0) {
      throw_if_failed();
      fail_if_left(rank, mine);
      if (changed_.wait_until(lock, deadline) == std::cv_status::timeout && mine.missing > 0 && !failed_)
        give_up(
            fmt::format("rank {} waited {} ms in {} for {}", rank, timeout_.count(), mine.name, missing_text(mine)));
    }
  } catch (...) {
    release(mine);
    throw;
  }
  state.inside = false;
  release(mine);
}

void SimWorld::cancel(int rank, int ticket) noexcept {
  const std::lock_guard lock(mutex_);
  release(ranks_[static_cast<std::size_t>(rank)].posts[static_cast<std::size_t>(ticket)]);
}

void SimWorld::leave(int rank) {
  const std::lock_guard lock(mutex_);
  ranks_[static_cast<std::size_t>(rank)].returned = true;
  changed_.notify_all();
}

void SimWorld::fail_rank(int rank, ErrorKind kind, std::string_view message) {
  const std::lock_guard lock(mutex_);
  if (!failed_) {
    failed_ = true;
    kind_ = kind;
    why_ = fmt::format("rank {} failed {}: {}", rank, where(rank), message);
  }
  changed_.notify_all();
}

void SimWorld::rethrow() const {
  if (failed_) throw Error(kind_, why_);
}

void SimWorld::give_up(const std::string& message) {
  failed_ = true;
  kind_ = ErrorKind::communication;
  why_ = message;
  changed_.notify_all();
  throw Error(kind_, why_);
}

void SimWorld::throw_if_failed() const {
  if (failed_) throw Error(ErrorKind::communication, why_);
}

void SimWorld::fail_if_left(int rank, const Post& mine) {
  for (std::size_t peer = 0; peer < ranks_.size(); ++peer)
    if (mine.done[peer] == 0 && ranks_[peer].returned)
      give_up(fmt::format("rank {} waits in {} for rank {}, which has returned", rank, mine.name, peer));
}

std::string SimWorld::missing_text(const Post& mine) const {
  std::string text;
  for (std::size_t peer = 0; peer < ranks_.size(); ++peer)
    if (mine.done[peer] == 0)
      text += fmt::format("{}rank {} ({})", text.empty() ? "" : ", ", peer, where(static_cast<int>(peer)));
  return text;
}

std::string SimWorld::where(int rank) const {
  const RankState& state = ranks_[static_cast<std::size_t>(rank)];
  if (state.last == nullptr) return "before any exchange";
  return fmt::format("{} {}", state.inside ? "in" : "after", state.last);
}

}  // namespace conclave::comm
