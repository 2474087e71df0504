// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The collectives as exchanges, the same for every transport. In: contiguous buffers. Out: messages for each rank.
#include <algorithm>

#include "base/error.hpp"
#include "conclave/comm.hpp"

namespace conclave {
namespace {

const std::byte* advance(const void* data, std::int64_t bytes) {
  return data == nullptr ? nullptr : static_cast<const std::byte*>(data) + bytes;
}
std::byte* advance(void* data, std::int64_t bytes) {
  return data == nullptr ? nullptr : static_cast<std::byte*>(data) + bytes;
}

void check_sizes(const char* name, const char* what, std::span<const std::int64_t> bytes, int size) {
  if (std::ssize(bytes) != size)
    fail(ErrorKind::invalid_argument, "{}: given {} {} sizes, expected one for each of {} ranks", name, bytes.size(),
         what, size);
}

/// term[i] summed over ranks in order; term of rank r starts at parts + r * count.
void sum_in_rank_order(const float* parts, std::int64_t count, int size, float* sum) {
  std::copy_n(parts, count, sum);
  for (int r = 1; r < size; ++r)
    for (std::int64_t i = 0; i < count; ++i) sum[i] += parts[r * count + i];
}

constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));

}  // namespace

void CommRequest::wait() {
  if (communicator_ == nullptr) return;
  std::exchange(communicator_, nullptr)->do_wait(ticket_);
}

bool CommRequest::arrived() {
  if (communicator_ == nullptr) return true;
  if (!communicator_->do_test(ticket_)) return false;
  communicator_ = nullptr;
  return true;
}

void CommRequest::cancel() noexcept {
  if (communicator_ != nullptr) std::exchange(communicator_, nullptr)->do_cancel(ticket_);
}

Communicator::Communicator(int rank, int size)
    : rank_(rank), size_(size), send_(static_cast<std::size_t>(size)), receive_(static_cast<std::size_t>(size)) {}

CommRequest Communicator::start(const Exchange& exchange, int channel) {
  if (std::ssize(exchange.send) != size_ || std::ssize(exchange.receive) != size_)
    fail(ErrorKind::invalid_argument, "{}: given {} messages to send and {} to receive, expected {} of each",
         exchange.name, exchange.send.size(), exchange.receive.size(), size_);
  if (channel < 0 || channel >= kMaxChannels)
    fail(ErrorKind::invalid_argument, "{}: channel {}, expected 0 to {}", exchange.name, channel, kMaxChannels - 1);
  return {*this, do_start(exchange, channel)};
}

void Communicator::all_gather(const void* send, std::int64_t bytes, void* receive, int channel) {
  for (int r = 0; r < size_; ++r) {
    send_[static_cast<std::size_t>(r)] = {send, bytes};
    receive_[static_cast<std::size_t>(r)] = {advance(receive, r * bytes), bytes};
  }
  start({"all_gather", send_, receive_}, channel).wait();
}

CommRequest Communicator::start_all_gather(const void* send, void* receive, std::span<const std::int64_t> bytes,
                                           int channel) {
  check_sizes("all_gather", "receive", bytes, size_);
  std::int64_t offset = 0;
  for (std::size_t r = 0; r < bytes.size(); ++r) {
    send_[r] = {send, bytes[static_cast<std::size_t>(rank_)]};
    receive_[r] = {advance(receive, offset), bytes[r]};
    offset += bytes[r];
  }
  return start({"all_gather", send_, receive_}, channel);
}

void Communicator::all_to_all(const void* send, void* receive, std::int64_t bytes, int channel) {
  for (int r = 0; r < size_; ++r) {
    send_[static_cast<std::size_t>(r)] = {advance(send, r * bytes), bytes};
    receive_[static_cast<std::size_t>(r)] = {advance(receive, r * bytes), bytes};
  }
  start({"all_to_all", send_, receive_}, channel).wait();
}

CommRequest Communicator::start_all_to_all(const void* send, std::span<const std::int64_t> send_bytes, void* receive,
                                           std::span<const std::int64_t> receive_bytes, int channel) {
  check_sizes("all_to_all", "send", send_bytes, size_);
  check_sizes("all_to_all", "receive", receive_bytes, size_);
  std::int64_t out = 0, in = 0;
  for (std::size_t r = 0; r < send_bytes.size(); ++r) {
    send_[r] = {advance(send, out), send_bytes[r]};
    receive_[r] = {advance(receive, in), receive_bytes[r]};
    out += send_bytes[r];
    in += receive_bytes[r];
  }
  return start({"all_to_all", send_, receive_}, channel);
}

void Communicator::barrier(int channel) {
  std::fill(send_.begin(), send_.end(), SendMessage{});
  std::fill(receive_.begin(), receive_.end(), ReceiveMessage{});
  start({"barrier", send_, receive_}, channel).wait();
}

void Communicator::reduce_scatter(const float* send, std::span<const std::int64_t> counts, float* sum, float* scratch,
                                  int channel) {
  check_sizes("reduce_scatter", "part", counts, size_);
  const std::int64_t own = counts[static_cast<std::size_t>(rank_)];
  std::int64_t offset = 0;
  for (std::size_t r = 0; r < counts.size(); ++r) {
    send_[r] = {advance(send, offset * kFloat), counts[r] * kFloat};
    receive_[r] = {advance(scratch, static_cast<std::int64_t>(r) * own * kFloat), own * kFloat};
    offset += counts[r];
  }
  start({"reduce_scatter", send_, receive_}, channel).wait();
  sum_in_rank_order(scratch, own, size_, sum);
}

std::int64_t Communicator::all_reduce_scratch(std::int64_t count) const noexcept {
  return (count + size_ - 1) / size_ * size_;
}

/// Every rank sums a share, so that each element crosses the wire about twice, then all get all shares.
void Communicator::all_reduce(float* data, std::int64_t count, float* scratch, int channel) {
  const std::int64_t share = all_reduce_scratch(count) / size_;
  const auto begin = [&](int r) { return std::min(r * share, count); };
  const auto length = [&](int r) { return begin(r + 1) - begin(r); };
  const std::int64_t own = length(rank_);
  for (int r = 0; r < size_; ++r) {
    send_[static_cast<std::size_t>(r)] = {advance(data, begin(r) * kFloat), length(r) * kFloat};
    receive_[static_cast<std::size_t>(r)] = {advance(scratch, r * own * kFloat), own * kFloat};
  }
  start({"all_reduce", send_, receive_}, channel).wait();
  float* sum = data + begin(rank_);
  sum_in_rank_order(scratch, own, size_, sum);
  for (int r = 0; r < size_; ++r) {
    // Not into its own place: source and target of a message may not overlap.
    send_[static_cast<std::size_t>(r)] = {r == rank_ ? nullptr : advance(sum, 0), r == rank_ ? 0 : own * kFloat};
    const std::int64_t bytes = r == rank_ ? 0 : length(r) * kFloat;
    receive_[static_cast<std::size_t>(r)] = {advance(data, begin(r) * kFloat), bytes};
  }
  start({"all_reduce", send_, receive_}, channel).wait();
}

}  // namespace conclave
