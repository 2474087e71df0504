// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Any text as a config.json: an Error, or a MoeConfig that validate() accepts for each layer that has a block.
#include <cstddef>
#include <cstdint>

#include "conclave/error.hpp"
#include "io/families.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const conclave::ModelConfig config(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
    const conclave::Family& family = conclave::family_of(config);
    const std::vector<bool> sparse = family.sparse_layers(config);
    // The rule is the same code for every layer; a few show what depends on the layer.
    constexpr std::size_t kLayers = 4;
    for (std::size_t i = 0; i < sparse.size() && i < kLayers; ++i)
      if (sparse[i]) conclave::validate(conclave::moe_config_of(family, config.at_layer(static_cast<std::int64_t>(i))));
  } catch (const conclave::Error&) {
    // Refusing is right; crashing, hanging or any other exception is not.
  }
  return 0;
}
