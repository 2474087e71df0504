// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Any bytes as a safetensors file: an Error, or views whose every byte can be read.
#include <cstddef>
#include <cstdint>

#include "conclave/error.hpp"
#include "conclave/safetensors.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto file = conclave::SafetensorsFile::from_bytes(std::as_bytes(std::span(data, size)), "fuzz");
    unsigned sum = 0;
    for (const conclave::NamedTensor& t : file.tensors()) {
      const auto* bytes = static_cast<const volatile std::uint8_t*>(t.view.data);
      for (std::int64_t i = 0; i < t.view.bytes(); ++i) sum += bytes[i];
      file.give_up(t.view.data, t.view.bytes());
    }
    static_cast<void>(sum);
  } catch (const conclave::Error&) {
    // Refusing is right; crashing, hanging or any other exception is not.
  }
  return 0;
}
