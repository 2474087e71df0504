// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Micro-batches: parts of a batch whose steps interleave, so that one part's data travels while another part computes.
// Each is a fiber; exactly one runs at a time, on the thread that called run(), until it yields or ends. Code between
// yields stays straight-line and needs no locks. A kernel with an asynchronous prepare or finalize yields by itself.
#pragma once

#include <memory>

#include "conclave/function_ref.hpp"
#include "conclave/layer.hpp"
#include "conclave/pending.hpp"

namespace conclave {

/// The stacks of `count` fibers in a ring. Used by one thread at a time; nothing allocates after construction.
class MicroBatches {
 public:
  /// Throws Error unless 2 <= count <= 64.
  explicit MicroBatches(int count);
  ~MicroBatches();
  MicroBatches(MicroBatches&&) noexcept;
  MicroBatches& operator=(MicroBatches&&) noexcept;

  int count() const noexcept;

  /// body(0), ..., body(count - 1), each in its fiber, in turns: 0 first, and after a yield the next in the ring that
  /// has not ended. Returns when all have ended. If one throws, the others see MicroBatchAborted at their next (or
  /// current) yield, those that have not begun never begin, and the first exception is rethrown here.
  /// Throws Error inside another run() of this thread.
  void run(FunctionRef<void(int id)> body);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// As MicroBatches(count).run(body), stacks made for this call.
void run_micro_batches(int count, FunctionRef<void(int id)> body);

/// What a micro-batch sees at a yield after a sibling has failed. Let it pass.
class MicroBatchAborted : public Error {
 public:
  using Error::Error;
};

/// What code inside a micro-batch asks and does. Outside of one, enabled() is false and the rest does nothing.
namespace micro_batch {

/// True in a fiber of run(), on its thread. False in threads that an Executor lends.
bool enabled() noexcept;
/// The micro-batch that runs; 0 outside.
int current_id() noexcept;

/// The next in the ring goes on; returns when it is this one's turn again. Not from a destructor: it may throw.
void yield();

/// Leaves `hook` with the next in the ring, which runs it when it asks for pending hooks and at its end; runs it here
/// if nobody else is left. What it refers to must live until then, so wait_for_recv() is safer.
void register_recv_hook(InplaceFunction<void> hook);
/// Runs the hook that the previous in the ring left here, if there is one, once.
void run_pending_recv_hook();
/// Registers, yields, and on return runs the hook itself if nobody has: afterwards it has run exactly once.
void wait_for_recv(InplaceFunction<void> hook);

}  // namespace micro_batch

/// layer.run() with the tokens cut into batches.count() contiguous parts, the first ones larger by one where they do
/// not divide; part i uses slot (i, lane) of the workspace. Parts may be empty. The result has the bits of layer.run(),
/// except with simulated routing, which draws by row number.
void run_micro_batched(MoeLayer& layer, const LayerInput& input, const TensorView& output, Workspace& workspace,
                       Stream stream, MicroBatches& batches, int lane = 0);

}  // namespace conclave
