// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Any bytes as a GGUF file: its header is read or refused, tensors lie inside the file, and the keys give a valid
// configuration or none.
#include "conclave/error.hpp"
#include "io/families.hpp"
#include "io/gguf_config.hpp"
#include "io/gguf_header.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
    const conclave::GgufHeader header = conclave::parse_gguf_header(bytes, "fuzz");
    for (const conclave::GgufEntry& e : header.tensors)
      if (e.begin < 0 || e.bytes < 0 || e.begin + e.bytes > static_cast<std::int64_t>(size)) __builtin_trap();
    const conclave::ModelConfig config = conclave::gguf_config(header.metadata, "fuzz");
    conclave::validate(conclave::moe_config_of(conclave::family_of(config), config.at_layer(0)));
  } catch (const conclave::Error&) {
    // Refusing is right; crashing, hanging or any other exception is not.
  }
  return 0;
}
