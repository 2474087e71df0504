// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// One process of an MPI run. In: what to do. Out: exit status 0 if it went as it should, and a line on stderr if not.
#include <array>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "conclave/comm.hpp"
#include "conclave/error.hpp"

namespace conclave {
namespace {

void expect(bool condition, const char* what) {
  if (!condition) throw Error(ErrorKind::invalid_argument, std::string("wrong: ") + what);
}

void collectives(Communicator& c) {
  const int size = c.size(), rank = c.rank();
  const auto ranks = static_cast<std::size_t>(size);
  c.barrier();
  std::vector<std::int64_t> all(ranks), counts, expected;
  const std::int64_t mine = 10 + rank;
  c.all_gather(&mine, sizeof(mine), all.data());
  for (int r = 0; r < size; ++r) expect(all[static_cast<std::size_t>(r)] == 10 + r, "all_gather");

  // r elements from rank r, twice under way at once and waited for in the other order; larger than eager messages.
  constexpr std::int64_t kMany = 20000;
  for (int r = 0; r < size; ++r) {
    counts.push_back(r * kMany * 8);
    expected.insert(expected.end(), static_cast<std::size_t>(r * kMany), r);
  }
  const std::vector<std::int64_t> own(static_cast<std::size_t>(rank * kMany), rank);
  std::vector<std::int64_t> a(expected.size(), -1), b(expected.size(), -1);
  CommRequest first = c.start_all_gather(own.data(), a.data(), counts, 0);
  CommRequest second = c.start_all_gather(own.data(), b.data(), counts, 1);
  second.wait();
  first.wait();
  expect(a == expected && b == expected, "all_gather of varying counts");

  std::vector<float> data(67), scratch(static_cast<std::size_t>(c.all_reduce_scratch(67)));
  const auto term = [](int r, std::size_t i) {
    return (r % 2 == 0 ? 1e8f : -1e8f) + static_cast<float>(r + 1) * 0.3f * static_cast<float>(i);
  };
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = term(rank, i);
  c.all_reduce(data.data(), 67, scratch.data());
  for (std::size_t i = 0; i < data.size(); ++i) {
    float sum = term(0, i);
    for (int r = 1; r < size; ++r) sum += term(r, i);
    expect(data[i] == sum, "all_reduce in rank order");
  }

  // Shorter than the room.
  const char text[] = "0123456789";
  std::vector<std::array<char, 16>> room(ranks);
  std::vector<SendMessage> send;
  std::vector<ReceiveMessage> receive;
  for (auto& r : room) {
    send.push_back({text, rank + 1});
    receive.push_back({r.data(), 16});
  }
  c.start({"message", send, receive, false}).wait();
  for (int r = 0; r < size; ++r)
    expect(std::memcmp(room[static_cast<std::size_t>(r)].data(), text, static_cast<std::size_t>(r + 1)) == 0, "room");
}

void forever(Communicator& c, int who, void (*what)()) {
  for (int i = 0;; ++i) {
    if (i == 100 && c.rank() == who) what();
    c.barrier();
  }
}

void run(const std::string& what, Communicator& c) {
  if (what == "collectives") return collectives(c);
  if (what == "killed") forever(c, 2, [] { std::raise(SIGKILL); });
  if (what == "throws") forever(c, 1, [] { throw Error(ErrorKind::bad_file, "no such shard"); });
  if (what == "other_size") {
    std::int64_t value = 0;
    std::vector<std::int64_t> all(static_cast<std::size_t>(c.size()));
    c.all_gather(&value, c.rank() == 1 ? 4 : 8, all.data());
  }
  if (what == "other_operation") {
    std::int64_t value = 0;
    std::vector<std::int64_t> all(static_cast<std::size_t>(c.size()));
    if (c.rank() != 1) c.all_gather(&value, 8, all.data());
    c.barrier();
  }
}

}  // namespace
}  // namespace conclave

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const auto communicator = conclave::make_mpi_communicator({std::chrono::milliseconds(2000)});
  try {
    conclave::run(what, *communicator);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", communicator->rank(), error.what());
    communicator->abort(error.what());
    return 1;
  }
  return 0;
}
