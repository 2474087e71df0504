// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a body. Out: the body called once on each thread, and its first exception.
#include "cpu/thread_pool.hpp"

#include <utility>

#include "base/error.hpp"
#include "cpu/features.hpp"
#include "cpu/spin.hpp"

namespace conclave {
namespace cpu {
namespace {

/// How long a thread spins before it sleeps. Waking a sleeper takes 5-50 us, and the regions of one layer of a model
/// follow each other within tens of microseconds; longer than that, the core belongs to somebody else.
constexpr std::chrono::microseconds kSpin{50};

/// Without a core for each thread, spinning takes the core from the thread that is waited for.
std::chrono::nanoseconds spin_for(int num_threads) {
  return num_threads <= available_cpus() ? std::chrono::nanoseconds(kSpin) : std::chrono::nanoseconds(0);
}

[[noreturn]] void fail_nested() {
  fail(ErrorKind::invalid_argument,
       "Executor::parallel: called while a region of the same executor runs, expected one region at a time");
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) : num_threads_(num_threads), spin_(spin_for(num_threads)) {
  workers_.reserve(static_cast<std::size_t>(num_threads - 1));
  try {
    for (int thread = 1; thread < num_threads; ++thread) workers_.emplace_back([this, thread] { work(thread); });
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() {
  stop();
}

void ThreadPool::stop() noexcept {
  body_ = nullptr;
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::call(const FunctionRef<void(int)>& body, int thread) noexcept {
  try {
    body(thread);
  } catch (...) {
    if (!has_error_.exchange(true, std::memory_order_relaxed)) error_ = std::current_exception();
  }
}

void ThreadPool::work(int thread) noexcept {
  std::uint32_t epoch = 0;
  for (;;) {
    epoch = wait_while_equal(epoch_, epoch, spin_);
    if (body_ == nullptr) return;
    call(*body_, thread);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_one();
  }
}

void ThreadPool::parallel(FunctionRef<void(int)> body) {
  if (in_region_.exchange(true, std::memory_order_acquire)) fail_nested();
  if (num_threads_ > 1) {
    body_ = &body;
    running_.store(num_threads_ - 1, std::memory_order_relaxed);
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
  }
  call(body, 0);
  std::int32_t left = running_.load(std::memory_order_acquire);
  while (left != 0) left = wait_while_equal(running_, left, spin_);
  std::exception_ptr error = std::exchange(error_, nullptr);
  has_error_.store(false, std::memory_order_relaxed);
  in_region_.store(false, std::memory_order_release);
  if (error) std::rethrow_exception(std::move(error));
}

namespace {

class InlineExecutor final : public Executor {
 public:
  int num_threads() const noexcept override { return 1; }
  void parallel(FunctionRef<void(int)> body) override {
    if (in_region_.exchange(true, std::memory_order_acquire)) fail_nested();
    const Leave leave{in_region_};
    body(0);
  }

 private:
  struct Leave {
    std::atomic<bool>& in_region;
    ~Leave() { in_region.store(false, std::memory_order_release); }
  };
  std::atomic<bool> in_region_{false};
};

}  // namespace
}  // namespace cpu

std::unique_ptr<Executor> make_executor(int num_threads) {
  require(num_threads >= 0, "make_executor: num_threads: given {}, expected 0 (all) or more", num_threads);
  if (num_threads == 0) num_threads = cpu::available_cpus();
  if (num_threads == 1) return make_inline_executor();
  return std::make_unique<cpu::ThreadPool>(num_threads);
}

std::unique_ptr<Executor> make_inline_executor() {
  return std::make_unique<cpu::InlineExecutor>();
}

}  // namespace conclave
