// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "conclave/comm.hpp"
#include "support/message_of.hpp"

namespace conclave {
namespace {

TEST(SelfCommunicator, IsOneRankThatTalksToItself) {
  const auto c = make_self_communicator();
  EXPECT_EQ(c->transport(), "self");
  EXPECT_EQ(c->rank(), 0);
  EXPECT_EQ(c->size(), 1);
  const int sent = 7;
  int received = 0;
  c->all_to_all(&sent, &received, sizeof(int));
  EXPECT_EQ(received, 7);
  c->barrier();
  float data[] = {1.5f, 2.5f};
  float scratch[2];
  c->all_reduce(data, 2, scratch);
  EXPECT_EQ(data[1], 2.5f);
}

TEST(SelfCommunicator, RefusesSizesThatDiffer) {
  const auto c = make_self_communicator();
  const std::int64_t one = 1, two = 2;
  const char sent[2] = {};
  char received[2];
  const std::string message = test::message_of([&] {
    c->start_all_to_all(sent, {&two, 1}, received, {&one, 1}).wait();
  });
  EXPECT_THAT(message, testing::HasSubstr("all_to_all: rank 0 sends 2 bytes to rank 0, which expects 1"));
}

}  // namespace
}  // namespace conclave
