// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: --device and --threads. Out: the threads, the facts of the machine, and its measured ceilings.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "command.hpp"
#include "conclave/config.hpp"
#include "conclave/device.hpp"
#include "conclave/stream.hpp"

namespace conclave::cli {

enum class Ceilings {
  cached,     ///< As kept from an earlier measurement; else none.
  measured,   ///< As kept; else measure and keep.
  remeasure,  ///< Measure and keep.
};

struct Machine {
  std::unique_ptr<Executor> executor;  ///< Of the host, also where the layer runs on a GPU.
  std::optional<CudaStream> gpu;       ///< Owner of `stream` on a GPU.
  DeviceFacts facts;                   ///< Of the device that was asked for.
  Stream stream;
  DeviceFacts host_facts;  ///< Without measured ceilings where `facts` are a GPU's.
  Stream host_stream;      ///< For oracles and conversions.
  std::string cache_path;
  bool measured_now = false;
  std::string cache_note;  ///< Why the measurement could not be kept.
};

/// "cpu", "cuda" or "cuda:N". Throws Error for anything else, and for a GPU that this build or machine does not have.
Device check_device(const std::string& text);

Machine open_machine(const CommonOptions& options, Ceilings ceilings);

}  // namespace conclave::cli
