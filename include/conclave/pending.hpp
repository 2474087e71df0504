// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// A result that is on its way: an optional cheap hook ("has it arrived?", run by a sibling micro-batch) and finish(),
// which completes and returns it. Each at most once, hook before finish; misuse throws.
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

#include "conclave/error.hpp"

namespace conclave {

/// The value of a Pending that only says "done".
struct Done {};

/// A move-only callable kept inline, because run() never allocates.
template <class R>
class InplaceFunction {
 public:
  /// Two cache lines: a this pointer, a stage's input struct by pointer, and a few scalars.
  static constexpr std::size_t kCapacity = 128;

  InplaceFunction() = default;
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, InplaceFunction> && std::is_invocable_r_v<R, F&>)
      InplaceFunction(F&& f) {
    using Fn = std::remove_cvref_t<F>;
    static_assert(sizeof(Fn) <= kCapacity && alignof(Fn) <= alignof(std::max_align_t));
    static_assert(std::is_nothrow_move_constructible_v<Fn>);
    new (storage_) Fn(std::forward<F>(f));
    call_ = [](void* p) -> R { return (*static_cast<Fn*>(p))(); };
    relocate_ = [](void* from, void* to) noexcept {
      Fn* source = static_cast<Fn*>(from);
      if (to != nullptr) new (to) Fn(std::move(*source));
      source->~Fn();
    };
  }
  InplaceFunction(InplaceFunction&& other) noexcept { take(other); }
  InplaceFunction& operator=(InplaceFunction&& other) noexcept {
    if (this != &other) {
      reset();
      take(other);
    }
    return *this;
  }
  ~InplaceFunction() { reset(); }

  explicit operator bool() const noexcept { return call_ != nullptr; }
  R operator()() { return call_(storage_); }
  void reset() noexcept {
    if (relocate_ != nullptr) relocate_(storage_, nullptr);
    call_ = nullptr;
    relocate_ = nullptr;
  }

 private:
  void take(InplaceFunction& other) noexcept {
    if (other.relocate_ != nullptr) other.relocate_(other.storage_, storage_);
    call_ = std::exchange(other.call_, nullptr);
    relocate_ = std::exchange(other.relocate_, nullptr);
  }
  alignas(std::max_align_t) std::byte storage_[kCapacity];
  R (*call_)(void*) = nullptr;
  void (*relocate_)(void* from, void* to) noexcept = nullptr;
};

template <class T>
class Pending {
 public:
  explicit Pending(InplaceFunction<T> finish) : finish_(std::move(finish)) {}
  Pending(InplaceFunction<void> hook, InplaceFunction<T> finish)
      : hook_(std::move(hook)), finish_(std::move(finish)), hook_due_(true) {}

  bool has_hook() const noexcept { return hook_due_; }
  /// Waits until the data has arrived, and no more. Throws Error if there is no hook or it ran before.
  void hook() {
    if (!hook_due_) throw Error(ErrorKind::invalid_argument, "Pending::hook: no hook is due");
    hook_due_ = false;
    hook_();
  }
  /// Completes the operation. Throws Error if a hook is due or finish() ran before.
  T finish() {
    if (hook_due_) throw Error(ErrorKind::invalid_argument, "Pending::finish: hook() has not run");
    if (!finish_) throw Error(ErrorKind::invalid_argument, "Pending::finish: finished before");
    InplaceFunction<T> f = std::move(finish_);
    return f();
  }

 private:
  InplaceFunction<void> hook_;
  InplaceFunction<T> finish_;
  bool hook_due_ = false;
};

}  // namespace conclave
