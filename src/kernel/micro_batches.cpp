// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a body. Out: its calls, one for each micro-batch, interleaved at their yields. The caller's own stack schedules:
// a fiber always switches back to it, and it resumes the next.
#include "conclave/micro_batches.hpp"

#include <boost/context/fiber.hpp>
#include <boost/context/preallocated.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <exception>
#include <vector>

#include "base/error.hpp"
#include "kernel/micro_batches_switch.hpp"

namespace conclave {
namespace kernel {

namespace context = boost::context;

/// The deepest path is a reference reduction with 32 KiB of counters under message formatting; sanitizers triple it.
/// Pages that nobody touches cost nothing, and the guard page below turns an overflow into a fault.
constexpr std::size_t kStackBytes = std::size_t{1} << 20;
constexpr int kMaxCount = 64;

/// Stacks belong to MicroBatches and outlive the fibers on them.
struct BorrowedStack {
  void deallocate(context::stack_context&) noexcept {}
};

enum class MicroState { waiting, begun, ended };

struct MicroContext {
  context::protected_fixedsize_stack allocator{kStackBytes};
  context::stack_context stack;
  context::fiber fiber;    ///< While it is suspended.
  context::fiber to_ring;  ///< While it runs.
  StackNote note;
  InplaceFunction<void> hook;  ///< Left here by a sibling.
  int hook_owner = -1;
  MicroState state = MicroState::ended;
};

class Ring {
 public:
  explicit Ring(int count) : contexts(static_cast<std::size_t>(count)) {
    for (MicroContext& c : contexts) c.stack = c.allocator.allocate();
  }
  ~Ring() {
    for (MicroContext& c : contexts) {
      forget_stack(static_cast<const char*>(c.stack.sp) - c.stack.size, c.stack.size);
      c.allocator.deallocate(c.stack);
    }
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  MicroContext& at(int id) { return contexts[static_cast<std::size_t>(id)]; }
  int next_of(int id) const { return (id + 1) % static_cast<int>(contexts.size()); }

  void run(FunctionRef<void(int)> body);
  void start(int id, FunctionRef<void(int)>& body);
  void resume(int id);
  void run_body(int id, const FunctionRef<void(int)>& body);
  void suspend();
  void run_hook(MicroContext& c);

  std::vector<MicroContext> contexts;
  StackNote ring;
  int current = 0;
  std::exception_ptr failure;
};

/// The run() that this thread is inside of. Set for the time of run() only, so that layers on other threads, and the
/// same thread afterwards, see none.
static thread_local Ring* active = nullptr;

void Ring::run_hook(MicroContext& c) {
  // What a hook of a failed run refers to may be gone.
  if (!c.hook || failure) return;
  InplaceFunction<void> hook = std::move(c.hook);
  hook();
}

void Ring::run_body(int id, const FunctionRef<void(int)>& body) {
  try {
    body(id);
    run_hook(at(id));
  } catch (...) {
    if (!failure) failure = std::current_exception();
  }
  at(id).state = MicroState::ended;
}

void Ring::start(int id, FunctionRef<void(int)>& body) {
  MicroContext& c = at(id);
  c.state = MicroState::begun;
  c.note = {static_cast<const std::byte*>(c.stack.sp) - c.stack.size, c.stack.size, nullptr, nullptr};
  if (__tsan_create_fiber != nullptr) c.note.tsan = __tsan_create_fiber(0);
  c.fiber = context::fiber(std::allocator_arg, context::preallocated(c.stack.sp, c.stack.size, c.stack),
                           BorrowedStack{}, [this, id, &body](context::fiber&& to_ring) {
                             MicroContext& self = at(id);
                             after_switch(self.note, ring);
                             self.to_ring = std::move(to_ring);
                             run_body(id, body);
                             before_switch(self.note, ring, true);
                             return std::move(self.to_ring);
                           });
}

void Ring::resume(int id) {
  MicroContext& c = at(id);
  current = id;
  const ExceptionState exceptions;
  before_switch(ring, c.note);
  c.fiber = std::move(c.fiber).resume();
  const bool ended = c.state == MicroState::ended;
  after_switch(ring, c.note, ended);
  if (ended && __tsan_destroy_fiber != nullptr) __tsan_destroy_fiber(c.note.tsan);
}

/// On a fiber: lets the ring go on until it is this one's turn.
void Ring::suspend() {
  MicroContext& c = at(current);
  const int id = current;
  if (!failure) {
    const ExceptionState exceptions;
    before_switch(c.note, ring);
    c.to_ring = std::move(c.to_ring).resume();
    after_switch(c.note, ring);
  }
  if (failure)
    throw MicroBatchAborted(ErrorKind::communication,
                            fmt::format("micro-batch {}: stopped because another micro-batch failed", id));
}

void Ring::run(FunctionRef<void(int)> body) {
  require(active == nullptr, "micro-batches: run() inside of micro-batch {}, expected one run of a thread at a time",
          active == nullptr ? 0 : active->current);
  struct Active {
    explicit Active(Ring* ring) { active = ring; }
    ~Active() { active = nullptr; }
  } const guard(this);
  failure = nullptr;
  ring = {};
  if (__tsan_get_current_fiber != nullptr) ring.tsan = __tsan_get_current_fiber();

  const int count = static_cast<int>(contexts.size());
  for (MicroContext& c : contexts) c.state = MicroState::waiting;
  // First turns start fibers, so that those behind a failure never begin.
  for (int id = 0; id < count && !failure; ++id) {
    start(id, body);
    resume(id);
  }
  for (bool turns_left = true; turns_left;) {
    turns_left = false;
    for (int id = 0; id < count; ++id) {
      if (at(id).state != MicroState::begun) continue;
      resume(id);
      turns_left = true;
    }
  }
  for (MicroContext& c : contexts) c.hook.reset();
  if (failure) std::rethrow_exception(std::exchange(failure, nullptr));
}

}  // namespace kernel

struct MicroBatches::Impl : kernel::Ring {
  using Ring::Ring;
};

MicroBatches::MicroBatches(int count) {
  require(count >= 2 && count <= kernel::kMaxCount, "micro-batches: given {}, expected 2 to {}", count,
          kernel::kMaxCount);
  impl_ = std::make_unique<Impl>(count);
}
MicroBatches::~MicroBatches() = default;
MicroBatches::MicroBatches(MicroBatches&&) noexcept = default;
MicroBatches& MicroBatches::operator=(MicroBatches&&) noexcept = default;

int MicroBatches::count() const noexcept {
  return static_cast<int>(impl_->contexts.size());
}

void MicroBatches::run(FunctionRef<void(int id)> body) {
  impl_->run(body);
}

void run_micro_batches(int count, FunctionRef<void(int id)> body) {
  MicroBatches(count).run(body);
}

namespace micro_batch {

using kernel::active;

bool enabled() noexcept {
  return active != nullptr;
}

int current_id() noexcept {
  return active == nullptr ? 0 : active->current;
}

void yield() {
  if (active != nullptr) active->suspend();
}

void register_recv_hook(InplaceFunction<void> hook) {
  if (active == nullptr) return hook();
  const int owner = active->current;
  kernel::MicroContext& next = active->at(active->next_of(owner));
  // A sibling that has ended asks for nothing any more. One that still holds a hook gets the older one done first.
  if (next.state == kernel::MicroState::ended) return hook();
  active->run_hook(next);
  next.hook = std::move(hook);
  next.hook_owner = owner;
}

void run_pending_recv_hook() {
  if (active != nullptr) active->run_hook(active->at(active->current));
}

void wait_for_recv(InplaceFunction<void> hook) {
  if (active == nullptr) return hook();
  const int owner = active->current;
  register_recv_hook(std::move(hook));
  yield();
  kernel::MicroContext& next = active->at(active->next_of(owner));
  if (next.hook && next.hook_owner == owner) active->run_hook(next);
}

}  // namespace micro_batch
}  // namespace conclave
