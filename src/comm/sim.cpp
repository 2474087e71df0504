// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// N ranks in one process: a thread and a view of the shared world for each.
#include <exception>
#include <thread>

#include "base/error.hpp"
#include "comm/sim_world.hpp"
#include "conclave/comm.hpp"

namespace conclave {
namespace {

/// A thread for each: more is a mistake, not a simulation.
constexpr int kMaxSimRanks = 1024;

class SimCommunicator final : public Communicator {
 public:
  SimCommunicator(comm::SimWorld& world, int rank, int size) : Communicator(rank, size), world_(world) {}
  std::string_view transport() const noexcept override { return "sim"; }
  void abort(std::string_view message) noexcept override {
    try {
      world_.fail_rank(rank(), ErrorKind::communication, message);
    } catch (const std::exception&) {
      // Without memory for the text the others still end, by their timeout.
    }
  }

 private:
  int do_start(const Exchange& exchange, int channel) override { return world_.post(rank(), exchange, channel); }
  bool do_test(int ticket) override { return world_.test(rank(), ticket); }
  void do_wait(int ticket) override { world_.wait(rank(), ticket); }
  void do_cancel(int ticket) noexcept override { world_.cancel(rank(), ticket); }

  comm::SimWorld& world_;
};

void run_rank(comm::SimWorld& world, int rank, int size, const FunctionRef<void(Communicator&)>& body) {
  try {
    SimCommunicator communicator(world, rank, size);
    body(communicator);
    world.leave(rank);
  } catch (const Error& error) {
    world.fail_rank(rank, error.kind(), error.what());
  } catch (const std::exception& error) {
    world.fail_rank(rank, ErrorKind::communication, error.what());
  } catch (...) {
    world.fail_rank(rank, ErrorKind::communication, "an exception of an unknown type");
  }
}

}  // namespace

void run_ranks(int size, FunctionRef<void(Communicator& communicator)> body, const CommOptions& options) {
  require(size > 0 && size <= kMaxSimRanks, "run_ranks: given {} ranks, expected 1 to {}", size, kMaxSimRanks);
  comm::SimWorld world(size, options);
  {
    std::vector<std::jthread> threads;
    threads.reserve(static_cast<std::size_t>(size));
    for (int rank = 0; rank < size; ++rank)
      threads.emplace_back([&world, rank, size, &body] { run_rank(world, rank, size, body); });
  }
  world.rethrow();
}

}  // namespace conclave
