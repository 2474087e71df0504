// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Processes under mpirun. An exchange is a non-blocking message to and from every rank, not one of MPI's collectives:
// only then can an error say which rank is missing, may a message be shorter than its room, and are sizes checked.
#include <mpi.h>

#include <array>
#include <chrono>
#include <climits>
#include <exception>
#include <thread>

#include "base/error.hpp"
#include "comm/message.hpp"
#include "conclave/comm.hpp"

namespace conclave {
namespace {

using Clock = std::chrono::steady_clock;

/// Other ranks may be about to print why they failed too.
constexpr std::chrono::milliseconds kGraceBeforeAbort{300};
/// Messages mostly come within microseconds; after that a rank that shares its core should give it away.
constexpr std::chrono::microseconds kSpin{50};

constexpr int kSequenceBits = 20;
constexpr int kNameBits = 6;

struct MpiRequest {
  bool used = false;
  const char* name = "";
  bool exact = true;
  int tag = 0;
  std::vector<MPI_Request> requests;   ///< [2 * size]: sends, then receives; null for this rank itself.
  std::vector<std::int64_t> expected;  ///< [size]: room for the message of each rank.
};

std::string text_of_mpi(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) return fmt::format("MPI error {}", code);
  return std::string(text, static_cast<std::size_t>(length));
}

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(MPI_Comm comm, int rank, int size, bool owns_mpi, const CommOptions& options)
      : Communicator(rank, size), comm_(comm), owns_mpi_(owns_mpi), timeout_(options.timeout) {
    for (MpiRequest& r : slots_) {
      r.requests.assign(2 * static_cast<std::size_t>(size), MPI_REQUEST_NULL);
      r.expected.assign(static_cast<std::size_t>(size), 0);
    }
    statuses_.resize(2 * static_cast<std::size_t>(size));
  }

  /// A rank that fails must not wait for the others in MPI_Finalize: mpirun sees that it left without, and ends them.
  ~MpiCommunicator() override {
    if (broken_ || std::uncaught_exceptions() > 0) return;
    MPI_Comm_free(&comm_);
    if (owns_mpi_) MPI_Finalize();
  }

  std::string_view transport() const noexcept override { return "mpi"; }

  void abort(std::string_view /*message*/) noexcept override {
    broken_ = true;
    std::this_thread::sleep_for(kGraceBeforeAbort);
    MPI_Abort(comm_, 1);
  }

 private:
  int do_start(const Exchange& exchange, int channel) override;
  bool do_test(int ticket) override { return test(slots_[static_cast<std::size_t>(ticket)]); }
  void do_wait(int ticket) override;
  void do_cancel(int ticket) noexcept override;

  int tag_of(const char* name, int channel);
  bool test(MpiRequest& r);
  void check_sizes(const MpiRequest& r);
  std::string missing_text(MpiRequest& r);
  [[noreturn]] void fail_with(const std::string& message) {
    broken_ = true;
    throw Error(ErrorKind::communication, message);
  }
  void check(const char* name, int code) {
    if (code != MPI_SUCCESS) fail_with(fmt::format("rank {} failed in {}: {}", rank(), name, text_of_mpi(code)));
  }

  MPI_Comm comm_;
  bool owns_mpi_;
  bool broken_ = false;
  std::chrono::milliseconds timeout_;
  std::array<MpiRequest, kMaxRequests> slots_;
  std::array<std::uint32_t, kMaxChannels> next_{};
  std::vector<MPI_Status> statuses_;
};

/// Channel, operation and sequence number: another operation on one rank matches nothing.
int MpiCommunicator::tag_of(const char* name, int channel) {
  std::uint32_t hash = 0;
  for (const char* c = name; *c != 0; ++c) hash = hash * 31 + static_cast<unsigned char>(*c);
  const std::uint32_t sequence = next_[static_cast<std::size_t>(channel)]++ % (1U << kSequenceBits);
  const std::uint32_t operation = hash % (1U << kNameBits);
  return static_cast<int>((static_cast<std::uint32_t>(channel) << (kSequenceBits + kNameBits)) |
                          (operation << kSequenceBits) | sequence);
}

int MpiCommunicator::do_start(const Exchange& exchange, int channel) {
  const auto me = static_cast<std::size_t>(rank());
  comm::require_fit(exchange.name, rank(), exchange.send[me], rank(), exchange.receive[me], exchange.exact);
  int ticket = 0;
  while (ticket < kMaxRequests && slots_[static_cast<std::size_t>(ticket)].used) ++ticket;
  if (ticket == kMaxRequests)
    fail(ErrorKind::invalid_argument, "{}: {} exchanges of this rank are under way, expected fewer than that",
         exchange.name, kMaxRequests);
  MpiRequest& r = slots_[static_cast<std::size_t>(ticket)];
  r.name = exchange.name;
  r.exact = exchange.exact;
  r.tag = tag_of(exchange.name, channel);
  const auto length = [&](std::int64_t bytes) {
    if (bytes > INT_MAX)
      fail(ErrorKind::invalid_argument, "{}: a message of {} bytes, expected at most {}", exchange.name, bytes,
           INT_MAX);
    return static_cast<int>(bytes);
  };
  const auto ranks = static_cast<std::size_t>(size());
  r.used = true;
  for (std::size_t p = 0; p < ranks; ++p) {
    r.requests[p] = r.requests[ranks + p] = MPI_REQUEST_NULL;
    r.expected[p] = exchange.receive[p].bytes;
    if (p == me) continue;
    const int peer = static_cast<int>(p);
    // Room that nothing can fill has no need to be larger than a message may be.
    const int room = r.exact ? length(exchange.receive[p].bytes)
                             : static_cast<int>(std::min<std::int64_t>(exchange.receive[p].bytes, INT_MAX));
    check(r.name, MPI_Irecv(exchange.receive[p].data, room, MPI_BYTE, peer, r.tag, comm_, &r.requests[ranks + p]));
  }
  for (std::size_t p = 0; p < ranks; ++p)
    if (p != me)
      check(r.name, MPI_Isend(exchange.send[p].data, length(exchange.send[p].bytes), MPI_BYTE, static_cast<int>(p),
                              r.tag, comm_, &r.requests[p]));
  comm::copy_message(exchange.send[me], exchange.receive[me]);
  return ticket;
}

bool MpiCommunicator::test(MpiRequest& r) {
  int done = 0;
  const int code = MPI_Testall(static_cast<int>(r.requests.size()), r.requests.data(), &done, statuses_.data());
  if (code != MPI_SUCCESS) {
    std::string text = text_of_mpi(code);
    for (std::size_t i = 0; code == MPI_ERR_IN_STATUS && i < statuses_.size(); ++i)
      if (statuses_[i].MPI_ERROR != MPI_SUCCESS && statuses_[i].MPI_ERROR != MPI_ERR_PENDING)
        text =
            fmt::format("with rank {}: {}", i % static_cast<std::size_t>(size()), text_of_mpi(statuses_[i].MPI_ERROR));
    fail_with(fmt::format("rank {} failed in {}: {}", rank(), r.name, text));
  }
  if (done == 0) return false;
  check_sizes(r);
  r.used = false;
  return true;
}

void MpiCommunicator::check_sizes(const MpiRequest& r) {
  if (!r.exact) return;
  for (int p = 0; p < size(); ++p) {
    if (p == rank()) continue;
    int given = 0;
    MPI_Get_count(&statuses_[static_cast<std::size_t>(size() + p)], MPI_BYTE, &given);
    if (given != r.expected[static_cast<std::size_t>(p)])
      fail_with(comm::misfit_text(r.name, p, {nullptr, given}, rank(),
                                  {nullptr, r.expected[static_cast<std::size_t>(p)]}, true));
  }
}

void MpiCommunicator::do_wait(int ticket) {
  MpiRequest& r = slots_[static_cast<std::size_t>(ticket)];
  const auto begin = Clock::now();
  while (!test(r)) {
    const auto waited = Clock::now() - begin;
    if (waited > timeout_)
      fail_with(fmt::format("rank {} waited {} ms in {} for {}", rank(), timeout_.count(), r.name, missing_text(r)));
    if (waited < kSpin)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(kSpin);
  }
}

/// "rank 2, rank 3 (which called something else)"
std::string MpiCommunicator::missing_text(MpiRequest& r) {
  std::string text;
  for (int p = 0; p < size(); ++p) {
    int sent = 1, received = 1;
    MPI_Request_get_status(r.requests[static_cast<std::size_t>(p)], &sent, MPI_STATUS_IGNORE);
    MPI_Request_get_status(r.requests[static_cast<std::size_t>(size() + p)], &received, MPI_STATUS_IGNORE);
    if (sent != 0 && received != 0) continue;
    int other = 0;
    MPI_Iprobe(p, MPI_ANY_TAG, comm_, &other, MPI_STATUS_IGNORE);
    text += fmt::format("{}rank {}{}", text.empty() ? "" : ", ", p, other != 0 ? " (which called something else)" : "");
  }
  return text;
}

/// The buffers are about to go, and MPI may still use them: this process is not to go on.
void MpiCommunicator::do_cancel(int ticket) noexcept {
  broken_ = true;
  MpiRequest& r = slots_[static_cast<std::size_t>(ticket)];
  for (MPI_Request& request : r.requests)
    if (request != MPI_REQUEST_NULL) MPI_Cancel(&request);
}

}  // namespace

bool has_mpi() noexcept {
  return true;
}

std::unique_ptr<Communicator> make_mpi_communicator(const CommOptions& options) {
  int initialized = 0, finalized = 0, provided = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  require(finalized == 0, "mpi: it was finalised in this process, and can be initialised once only");
  if (initialized == 0 && MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS)
    fail(ErrorKind::communication, "mpi: MPI_Init_thread failed");
  MPI_Comm comm = MPI_COMM_NULL;
  if (MPI_Comm_dup(MPI_COMM_WORLD, &comm) != MPI_SUCCESS) fail(ErrorKind::communication, "mpi: MPI_Comm_dup failed");
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  int rank = 0, size = 1;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  return std::make_unique<MpiCommunicator>(comm, rank, size, initialized == 0, options);
}

}  // namespace conclave
