// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Any bytes as a case file: an Error, or a Case whose tensors can be read and whose problem survives being written.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "conclave/case_file.hpp"
#include "conclave/error.hpp"
#include "io/case_json.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

unsigned sum_of(const conclave::ConstTensorView& view) {
  unsigned sum = 0;
  const auto* bytes = static_cast<const volatile std::uint8_t*>(view.data);
  for (std::int64_t i = 0; i < view.bytes(); ++i) sum += bytes[i];
  return sum;
}

conclave::Case parse(const std::uint8_t* data, std::size_t size) {
  return conclave::parse_case(std::as_bytes(std::span(data, size)), "fuzz");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  conclave::Case value;
  try {
    value = parse(data, size);
  } catch (const conclave::Error&) {
    return 0;  // Refusing is right; crashing, hanging or any other exception is not.
  }
  sum_of(value.hidden_states);
  sum_of(value.weights.experts.w13);
  sum_of(value.weights.experts.w2);
  if (value.weights.expert_map) sum_of(*value.weights.expert_map);
  if (value.weights.e_score_correction_bias) sum_of(*value.weights.e_score_correction_bias);
  conclave::Case again;
  bool has_bias_given = false;
  conclave::read_problem(conclave::write_problem(value), "fuzz", again, has_bias_given);
  if (!(again.moe.routing == value.moe.routing) || again.note != value.note) std::abort();
  return 0;
}
