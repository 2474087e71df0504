// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What happens when ranks do not do the same: every one of them gets an error that says who and where, and soon.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "conclave/comm.hpp"
#include "conclave/error.hpp"
#include "support/message_of.hpp"

namespace conclave {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// The error of each rank of a run, "no error" where it had none, and the one that run_ranks threw.
struct Outcome {
  std::vector<std::string> of_rank;
  std::string thrown;
  milliseconds time{};
};

template <class Body>
Outcome outcome_of(int size, Body body, milliseconds timeout = milliseconds(20'000)) {
  Outcome outcome;
  outcome.of_rank.assign(static_cast<std::size_t>(size), "no error");
  const auto begin = std::chrono::steady_clock::now();
  outcome.thrown = test::message_of([&] {
    run_ranks(size,
              [&](Communicator& c) {
                try {
                  body(c);
                } catch (const std::exception& error) {
                  outcome.of_rank[static_cast<std::size_t>(c.rank())] = error.what();
                  throw;
                }
              },
              {timeout});
  });
  outcome.time = std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin);
  return outcome;
}

void exchange_forever(Communicator& c) {
  std::int64_t value = c.rank();
  std::vector<std::int64_t> all(static_cast<std::size_t>(c.size()));
  for (int i = 0; i < 1000000; ++i) c.all_gather(&value, sizeof(value), all.data());
}

TEST(SimCommunicator, ARankThatThrowsEndsTheOthersWithItsName) {
  const Outcome outcome = outcome_of(4, [](Communicator& c) {
    std::int64_t value = 0, all[4];
    c.all_gather(&value, sizeof(value), all);
    if (c.rank() == 2) throw Error(ErrorKind::bad_file, "shard is missing");
    exchange_forever(c);
  });
  EXPECT_EQ(outcome.thrown, "rank 2 failed after all_gather: shard is missing");
  EXPECT_EQ(outcome.of_rank[2], "shard is missing");
  for (std::size_t r : {0, 1, 3}) EXPECT_EQ(outcome.of_rank[r], outcome.thrown);
  EXPECT_LT(outcome.time, milliseconds(10'000));
}

TEST(SimCommunicator, AnyExceptionCounts) {
  const Outcome outcome = outcome_of(2, [](Communicator& c) {
    if (c.rank() == 1) throw std::logic_error("boom");
    c.barrier();
  });
  EXPECT_EQ(outcome.thrown, "rank 1 failed before any exchange: boom");
  EXPECT_EQ(outcome.of_rank[0], outcome.thrown);
}

TEST(SimCommunicator, TheKindOfTheErrorSurvives) {
  try {
    run_ranks(2, [](Communicator& c) {
      if (c.rank() == 0) throw Error(ErrorKind::unsupported, "nothing fits");
      c.barrier();
    });
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unsupported);
  }
}

TEST(SimCommunicator, AnotherOperationIsAnErrorOnEveryRank) {
  const Outcome outcome = outcome_of(3, [](Communicator& c) {
    std::int64_t value = 0, all[3];
    c.barrier();
    if (c.rank() == 1)
      c.all_to_all(all, all, 0);
    else
      c.all_gather(&value, 0, all);
  });
  for (const std::string& message : outcome.of_rank)
    EXPECT_THAT(message, AllOf(HasSubstr("all_to_all"), HasSubstr("all_gather"), HasSubstr("rank 1")));
}

TEST(SimCommunicator, AnotherSizeIsAnErrorOnEveryRank) {
  const Outcome outcome = outcome_of(3, [](Communicator& c) {
    std::int64_t value = 0, all[6];
    c.all_gather(&value, c.rank() == 2 ? 4 : 8, all);
  });
  for (const std::string& message : outcome.of_rank) EXPECT_THAT(message, AllOf(HasSubstr("4"), HasSubstr("rank 2")));
}

TEST(SimCommunicator, ARankThatReturnsIsNotWaitedFor) {
  const Outcome outcome = outcome_of(3, [](Communicator& c) {
    if (c.rank() != 1) c.barrier();
  });
  EXPECT_EQ(outcome.of_rank[1], "no error");
  EXPECT_THAT(outcome.of_rank[0], HasSubstr("waits in barrier for rank 1, which has returned"));
  EXPECT_EQ(outcome.of_rank[0], outcome.of_rank[2]);
}

TEST(SimCommunicator, ARankThatDoesNotComeIsNamedAfterTheTimeout) {
  const Outcome outcome = outcome_of(
      3,
      [](Communicator& c) {
        c.barrier();
        if (c.rank() == 2) std::this_thread::sleep_for(milliseconds(400));
        std::int64_t value = 0, all[3];
        c.all_gather(&value, 8, all);
      },
      milliseconds(50));
  EXPECT_THAT(outcome.thrown, HasSubstr("waited 50 ms in all_gather for rank 2 (after barrier)"));
  for (const std::string& message : outcome.of_rank) EXPECT_EQ(message, outcome.thrown);
}

TEST(SimCommunicator, AbortTellsTheOthers) {
  const Outcome outcome = outcome_of(2, [](Communicator& c) {
    if (c.rank() == 0) c.abort("enough");
    c.barrier();
  });
  EXPECT_EQ(outcome.thrown, "rank 0 failed before any exchange: enough");
  EXPECT_EQ(outcome.of_rank[1], outcome.thrown);
}

/// Requests may be waited for in any order, also in different orders on different ranks.
TEST(SimCommunicator, ExchangesUnderWayAreIndependent) {
  run_ranks(4, [](Communicator& c) {
    const std::vector<std::int64_t> bytes(4, 8);
    std::int64_t first = c.rank(), second = 10 + c.rank();
    std::vector<std::int64_t> a(4), b(4);
    CommRequest x = c.start_all_gather(&first, a.data(), bytes);
    CommRequest y = c.start_all_gather(&second, b.data(), bytes);
    if (c.rank() % 2 == 0) {
      x.wait();
      y.wait();
    } else {
      y.wait();
      while (!x.arrived()) std::this_thread::yield();
    }
    EXPECT_EQ(a, (std::vector<std::int64_t>{0, 1, 2, 3}));
    EXPECT_EQ(b, (std::vector<std::int64_t>{10, 11, 12, 13}));
  });
}

/// Two channels, started in opposite orders.
TEST(SimCommunicator, ChannelsAreMatchedIndependently) {
  run_ranks(2, [](Communicator& c) {
    const std::vector<std::int64_t> bytes(2, 8);
    std::int64_t mine[] = {c.rank(), 100 + c.rank()};
    std::vector<std::int64_t> got[2] = {std::vector<std::int64_t>(2), std::vector<std::int64_t>(2)};
    const int order[2][2] = {{0, 1}, {1, 0}};
    CommRequest requests[2];
    for (int channel : order[c.rank()])
      requests[channel] = c.start_all_gather(&mine[channel], got[channel].data(), bytes, channel + 3);
    requests[0].wait();
    requests[1].wait();
    EXPECT_EQ(got[0], (std::vector<std::int64_t>{0, 1}));
    EXPECT_EQ(got[1], (std::vector<std::int64_t>{100, 101}));
  });
}

/// A message may be shorter than its room where the exchange says so, and never longer.
TEST(SimCommunicator, RoomForMore) {
  const auto body = [](Communicator& c, std::int64_t bytes) {
    const char data[8] = "abcdefg";
    char room[2][8] = {};
    const SendMessage send[2] = {{data, bytes}, {data, bytes}};
    const ReceiveMessage receive[2] = {{room[0], 5}, {room[1], 5}};
    c.start({"message", send, receive, false}).wait();
    EXPECT_EQ(std::string(room[1 - c.rank()]), std::string("abc"));
  };
  run_ranks(2, [&](Communicator& c) { body(c, 3); });
  const Outcome outcome = outcome_of(2, [&](Communicator& c) { body(c, 6); });
  EXPECT_THAT(outcome.thrown, HasSubstr("at most 5"));
}

/// An exchange that was started and never waited for is withdrawn with its request: nobody writes into dead memory.
TEST(SimCommunicator, AFailureWithAnExchangeUnderWayIsSafe) {
  const Outcome outcome = outcome_of(3, [](Communicator& c) {
    const std::vector<std::int64_t> bytes(3, 8 * 1000);
    std::vector<std::int64_t> mine(1000), all(3000);
    CommRequest request;
    if (c.rank() != 0) request = c.start_all_gather(mine.data(), all.data(), bytes);
    if (c.rank() == 1) throw std::runtime_error("in between");
    if (c.rank() == 0) {
      std::this_thread::sleep_for(milliseconds(30));
      request = c.start_all_gather(mine.data(), all.data(), bytes);
    }
    request.wait();
  });
  EXPECT_THAT(outcome.thrown, HasSubstr("rank 1 failed after all_gather: in between"));
  EXPECT_THAT(outcome.of_rank[2], HasSubstr("in between"));
}

TEST(SimCommunicator, TooManyRequestsUnderWay) {
  run_ranks(2, [](Communicator& c) {
    const std::vector<std::int64_t> bytes(2, 0);
    std::vector<CommRequest> requests;
    for (int i = 0; i < Communicator::kMaxRequests; ++i)
      requests.push_back(c.start_all_gather(nullptr, nullptr, bytes));
    EXPECT_THAT(test::message_of([&] { c.start_all_gather(nullptr, nullptr, bytes); }), HasSubstr("under way"));
    for (CommRequest& request : requests) request.wait();
  });
}

TEST(SimCommunicator, NoRanksAreRefused) {
  EXPECT_THROW(run_ranks(0, [](Communicator&) {}), Error);
}

}  // namespace
}  // namespace conclave
