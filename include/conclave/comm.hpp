// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Ranks that talk to each other: the one primitive is an exchange, in which every rank sends one message to every rank;
// the collectives are exchanges, and sums are done locally in rank order, so that their bits depend on nothing else.
// All ranks of a communicator call the same operations in the same order. A rank that fails, leaves or calls something
// else makes every other rank fail with an Error(communication) that names it; no wait lasts longer than the timeout.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "conclave/function_ref.hpp"

namespace conclave {

/// Bytes to or from one rank; 0 is legal, with null data.
struct SendMessage {
  const void* data = nullptr;
  std::int64_t bytes = 0;
};
struct ReceiveMessage {
  void* data = nullptr;
  std::int64_t bytes = 0;
};

struct Exchange {
  const char* name = "exchange";            ///< The operation, in errors; a literal, the same on every rank.
  std::span<const SendMessage> send;        ///< [size], by receiver. Copied by start(); the bytes must stay.
  std::span<const ReceiveMessage> receive;  ///< [size], by sender.
  bool exact = true;                        ///< False: a message may be shorter than the room for it.
};

struct CommOptions {
  /// How long one wait may last before it is an error that names who is missing. Long enough for a rank that loads a
  /// checkpoint while the others wait; a process that dies is noticed by mpirun at once, whatever this says.
  std::chrono::milliseconds timeout{60'000};
};

class Communicator;

/// An exchange under way. Wait for it, or destroy it where an exception unwinds: then it is withdrawn.
class CommRequest {
 public:
  CommRequest() = default;
  CommRequest(Communicator& communicator, int ticket) noexcept : communicator_(&communicator), ticket_(ticket) {}
  CommRequest(CommRequest&& other) noexcept
      : communicator_(std::exchange(other.communicator_, nullptr)), ticket_(other.ticket_) {}
  CommRequest& operator=(CommRequest&& other) noexcept {
    if (this != &other) {
      cancel();
      communicator_ = std::exchange(other.communicator_, nullptr);
      ticket_ = other.ticket_;
    }
    return *this;
  }
  ~CommRequest() { cancel(); }

  /// Returns when every message has come and every message of this rank has been taken. Once waited for, a no-op.
  void wait();
  /// The same question without waiting. Throws Error where wait() would.
  bool arrived();

 private:
  void cancel() noexcept;
  Communicator* communicator_ = nullptr;
  int ticket_ = -1;
};

/// One rank's view. Used by one thread at a time. Nothing here allocates after construction.
class Communicator {
 public:
  /// Exchanges under way at once, and channels: operations of different channels are matched independently, so two
  /// micro-batches need not agree on the order of theirs.
  static constexpr int kMaxRequests = 32;
  static constexpr int kMaxChannels = 16;

  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// "self", "sim" or "mpi".
  virtual std::string_view transport() const noexcept = 0;
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }

  CommRequest start(const Exchange& exchange, int channel = 0);

  /// Equal counts: `bytes` from each rank, `receive` holds size() * bytes, in rank order.
  void all_gather(const void* send, std::int64_t bytes, void* receive, int channel = 0);
  /// Varying counts: bytes[r] from rank r, one behind the other.
  CommRequest start_all_gather(const void* send, void* receive, std::span<const std::int64_t> bytes, int channel = 0);
  /// `bytes` to and from each rank.
  void all_to_all(const void* send, void* receive, std::int64_t bytes, int channel = 0);
  /// send_bytes[r] to rank r and receive_bytes[r] from it, one behind the other in rank order.
  CommRequest start_all_to_all(const void* send, std::span<const std::int64_t> send_bytes, void* receive,
                               std::span<const std::int64_t> receive_bytes, int channel = 0);
  void barrier(int channel = 0);

  /// sum[i] = part of rank 0 + part of rank 1 + ..., in this order, over the counts[rank()] elements that this rank
  /// owns. `send` holds the parts for rank 0, 1, ... one behind the other; `scratch` size() * counts[rank()] elements.
  void reduce_scatter(const float* send, std::span<const std::int64_t> counts, float* sum, float* scratch,
                      int channel = 0);
  /// data[i] = sum over ranks, in rank order: the same bits on every rank. `scratch`: all_reduce_scratch(count).
  void all_reduce(float* data, std::int64_t count, float* scratch, int channel = 0);
  std::int64_t all_reduce_scratch(std::int64_t count) const noexcept;

  /// Tells the other ranks that this one gives up; their waits then throw Error("rank R failed in WHERE: message").
  /// Of an MPI process this ends every process of the run.
  virtual void abort(std::string_view message) noexcept = 0;

 protected:
  Communicator(int rank, int size);
  friend class CommRequest;
  virtual int do_start(const Exchange& exchange, int channel) = 0;
  virtual bool do_test(int ticket) = 0;  ///< True frees the ticket.
  virtual void do_wait(int ticket) = 0;  ///< Frees the ticket, also by throwing.
  virtual void do_cancel(int ticket) noexcept = 0;

 private:
  void wait_for(CommRequest request) { request.wait(); }
  int rank_;
  int size_;
  std::vector<SendMessage> send_;  ///< Of the call that is being started.
  std::vector<ReceiveMessage> receive_;
};

/// One rank that is alone.
std::unique_ptr<Communicator> make_self_communicator();

/// `size` ranks in this process, each body(communicator) on a thread of its own. Returns when all have returned. If one
/// throws, the others fail at their next exchange, and Error("rank R failed in WHERE: message") is thrown here with the
/// kind of the first error. `size` is at most 1024.
void run_ranks(int size, FunctionRef<void(Communicator& communicator)> body, const CommOptions& options = {});

/// True if this build has MPI.
bool has_mpi() noexcept;
/// The ranks of MPI_COMM_WORLD. One for each process: it initialises MPI and finalises it, if nobody else has.
/// Throws Error if this build has no MPI.
std::unique_ptr<Communicator> make_mpi_communicator(const CommOptions& options = {});

}  // namespace conclave
