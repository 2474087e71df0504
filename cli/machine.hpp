// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: --device and --threads. Out: the threads, the facts of the machine, and its measured ceilings.
#pragma once

#include <memory>
#include <string>

#include "command.hpp"
#include "conclave/config.hpp"
#include "conclave/stream.hpp"

namespace conclave::cli {

enum class Ceilings {
  cached,     ///< As kept from an earlier measurement; else none.
  measured,   ///< As kept; else measure and keep.
  remeasure,  ///< Measure and keep.
};

struct Machine {
  std::unique_ptr<Executor> executor;
  DeviceFacts facts;
  Stream stream;
  std::string cache_path;
  bool measured_now = false;
  std::string cache_note;  ///< Why the measurement could not be kept.
};

/// Throws Error for a device that this build or this machine does not have.
void check_device(const std::string& device);

Machine open_machine(const CommonOptions& options, Ceilings ceilings);

}  // namespace conclave::cli
