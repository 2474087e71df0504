// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Where work runs. On the CPU a stream names the Executor that lends its threads; on a GPU it is the native stream.
// Always the last argument, never defaulted.
#pragma once

#include <memory>

#include "conclave/function_ref.hpp"
#include "conclave/tensor.hpp"

namespace conclave {

/// Threads for one parallel region at a time. Engines with a pool of their own implement this; make_executor() gives
/// the library's.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual int num_threads() const noexcept = 0;
  /// Calls body(thread) once for each thread in [0, num_threads()), the caller being thread 0, and returns when all
  /// have returned. The first exception of a body is rethrown here. Regions do not nest. Never allocates.
  virtual void parallel(FunctionRef<void(int thread)> body) = 0;
};

/// A persistent pool. `num_threads` 0 means every CPU that this process may run on.
std::unique_ptr<Executor> make_executor(int num_threads = 0);

/// An Executor of one thread: the caller's.
std::unique_ptr<Executor> make_inline_executor();

struct Stream {
  Device device{};
  void* native = nullptr;        ///< cudaStream_t on a GPU, null on the CPU.
  Executor* executor = nullptr;  ///< CPU only, never null there.

  static Stream cpu(Executor& executor) noexcept { return Stream{Device{}, nullptr, &executor}; }
  /// `native` is a cudaStream_t of GPU `index`; null is its default stream. CudaStream (device.hpp) owns one.
  static Stream cuda(void* native, int index) noexcept {
    return Stream{Device{DeviceType::cuda, index}, native, nullptr};
  }
};

}  // namespace conclave
