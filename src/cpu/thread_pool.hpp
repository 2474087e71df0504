// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The library's Executor: threads that live as long as it does, and one parallel region at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

#include "conclave/stream.hpp"

namespace conclave::cpu {

/// A region starts when epoch_ changes and ends when running_ is 0. Both are spun on before a thread sleeps on them.
class ThreadPool final : public Executor {
 public:
  explicit ThreadPool(int num_threads);
  ~ThreadPool() override;
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const noexcept override { return num_threads_; }
  void parallel(FunctionRef<void(int thread)> body) override;

 private:
  void work(int thread) noexcept;
  void call(const FunctionRef<void(int)>& body, int thread) noexcept;
  void stop() noexcept;

  const int num_threads_;
  const std::chrono::nanoseconds spin_;
  std::vector<std::thread> workers_;
  const FunctionRef<void(int)>* body_ = nullptr;  ///< Null tells the workers to leave.
  std::exception_ptr error_;
  std::atomic<bool> has_error_{false};
  std::atomic<bool> in_region_{false};
  // Each on a line of its own: every worker reads epoch_ while others count running_ down.
  alignas(64) std::atomic<std::uint32_t> epoch_{0};
  alignas(64) std::atomic<std::int32_t> running_{0};
};

}  // namespace conclave::cpu
