// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What changes with the stack besides the registers: the C++ run-time's list of exceptions being handled, and what the
// sanitizers believe about the current stack. Boost.Context switches neither.
//
// The sanitizers' functions are weak: they exist in programs that are built with one, and are null elsewhere, so that
// one build of this file fits all.
#pragma once

#include <cxxabi.h>

#include <cstddef>
#include <cstring>

extern "C" {
void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom, std::size_t size) __attribute__((weak));
void __sanitizer_finish_switch_fiber(void* fake_stack, const void** old_bottom, std::size_t* old_size)
    __attribute__((weak));
void __asan_unpoison_memory_region(void const volatile* address, std::size_t size) __attribute__((weak));
void* __tsan_get_current_fiber() __attribute__((weak));
void* __tsan_create_fiber(unsigned flags) __attribute__((weak));
void __tsan_destroy_fiber(void* fiber) __attribute__((weak));
void __tsan_switch_to_fiber(void* fiber, unsigned flags) __attribute__((weak));
}

namespace conclave::kernel {

/// One stack as the tools see it.
struct StackNote {
  const void* bottom = nullptr;
  std::size_t size = 0;
  void* fake = nullptr;  ///< AddressSanitizer's shadow of the frames.
  void* tsan = nullptr;
};

/// Before the stack goes back to the system: frames that a fiber left for good stay marked, and whatever is mapped to
/// the same address next would look like them.
inline void forget_stack(const void* bottom, std::size_t size) noexcept {
  if (__asan_unpoison_memory_region != nullptr) __asan_unpoison_memory_region(bottom, size);
}

/// Before leaving `from` for `to`; `ends`: `from` is never entered again.
inline void before_switch(StackNote& from, const StackNote& to, bool ends = false) noexcept {
  if (__sanitizer_start_switch_fiber != nullptr)
    __sanitizer_start_switch_fiber(ends ? nullptr : &from.fake, to.bottom, to.size);
  // A fiber that ends still returns through instrumented frames of its own; its successor says when it is there.
  if (__tsan_switch_to_fiber != nullptr && !ends) __tsan_switch_to_fiber(to.tsan, 0);
}

/// On `now`, having come from `from`, of which the tool may know more than we do.
inline void after_switch(StackNote& now, StackNote& from, bool from_ended = false) noexcept {
  if (__sanitizer_finish_switch_fiber != nullptr) {
    const void* bottom = nullptr;
    std::size_t size = 0;
    __sanitizer_finish_switch_fiber(now.fake, &bottom, &size);
    if (from.bottom == nullptr) {
      from.bottom = bottom;
      from.size = size;
    }
  }
  if (__tsan_switch_to_fiber != nullptr && from_ended) __tsan_switch_to_fiber(now.tsan, 0);
}

/// The thread's exceptions in flight, kept over a switch: a fiber may yield inside a catch block.
class ExceptionState {
 public:
  ExceptionState() noexcept { std::memcpy(saved_, abi::__cxa_get_globals(), sizeof saved_); }
  ~ExceptionState() { std::memcpy(static_cast<void*>(abi::__cxa_get_globals()), saved_, sizeof saved_); }
  ExceptionState(const ExceptionState&) = delete;
  ExceptionState& operator=(const ExceptionState&) = delete;

 private:
  /// The Itanium C++ ABI fixes it: a pointer to the caught exceptions, and an unsigned count of uncaught ones.
  struct Globals {
    void* caught;
    unsigned uncaught;
  };
  std::byte saved_[sizeof(Globals)];
};

}  // namespace conclave::kernel
