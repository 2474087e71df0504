// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: the path of a model. Out: its configuration, its tensors, and where its MoE blocks are.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "io/block_tensors.hpp"

namespace conclave {

/// What a checkpoint is read from, before its blocks are.
struct Source {
  ModelConfig config;
  std::shared_ptr<const TensorStore> store;
  Family family;
  std::shared_ptr<const WeightFormat> format;  ///< Null: floats only.
  std::vector<BlockPlace> places;
  bool is_gguf = false;
};

/// Published configurations have a few kilobytes; a list for each layer and expert would still fit.
inline constexpr std::int64_t kMaxConfigBytes = 16 << 20;

/// A folder, or a file that ends in ".gguf". Reads headers only.
Source open_source(const std::string& path);

/// The config of one block, with no dtypes yet.
MoeConfig moe_config_of(const Source& source, const BlockPlace& place);

}  // namespace conclave
