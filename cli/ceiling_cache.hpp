// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What `info` measured, kept in a JSON file that the user can delete. One entry for each CPU name, number of threads
// and library version, because each of them changes the reading.
#pragma once

#include <optional>
#include <string>

#include "conclave/ceilings.hpp"

namespace conclave::cli {

/// $XDG_CACHE_HOME/conclave/cpu.json or ~/.cache/conclave/cpu.json; empty where neither is known.
std::string ceiling_cache_path();

std::string ceiling_key(const DeviceFacts& facts);

/// Nothing if the file is absent, unreadable, malformed, or lacks the key: the caller measures again.
std::optional<CpuCeilings> load_ceilings(const std::string& path, const std::string& key);

/// Replaces the file in one step, keeping its other entries. Returns why it could not be written, or nothing: a
/// reading that cannot be kept is still a reading.
std::string store_ceilings(const std::string& path, const std::string& key, const CpuCeilings& ceilings);

}  // namespace conclave::cli
