// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Parsers of option texts.
#include "parse.hpp"

#include <charconv>

#include "error.hpp"

namespace conclave::cli {
namespace {

template <class T>
bool parse_whole(const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

void set_constant(ActivationParams& params, const std::string& text) {
  const auto equals = text.find('=');
  const std::string name = text.substr(0, equals);
  const double value = equals == std::string::npos ? 0 : parse_number("--activation", text.substr(equals + 1));
  if (equals == std::string::npos)
    bad_input("--activation: given \"{}\", expected name=value", text);
  else if (name == "alpha")
    params.alpha = value;
  else if (name == "beta")
    params.beta = value;
  else if (name == "limit")
    params.limit = value;
  else if (name == "linear_beta")
    params.linear_beta = value;
  else
    bad_input("--activation: unknown constant \"{}\"; expected alpha, beta, limit or linear_beta", name);
}

}  // namespace

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (std::size_t end = text.find(separator); end != std::string::npos; end = text.find(separator, begin)) {
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  parts.push_back(text.substr(begin));
  return parts;
}

std::vector<std::int64_t> parse_counts(const char* option, const std::string& text) {
  // Far beyond any layer, and products of two of them still fit 64 bits.
  constexpr std::int64_t kLargest = 1'000'000'000;
  std::vector<std::int64_t> counts;
  for (const std::string& part : split(text, ',')) {
    std::int64_t value = 0;
    if (!parse_whole(part, value) || value < 0 || value > kLargest)
      bad_input("{}: given \"{}\", expected numbers from 0 to {} separated by commas", option, text, kLargest);
    counts.push_back(value);
  }
  return counts;
}

double parse_number(const char* option, const std::string& text) {
  double value = 0;
  if (!parse_whole(text, value)) bad_input("{}: given \"{}\", expected a number", option, text);
  return value;
}

DType parse_dtype(const char* option, const std::string& text) {
  const auto dtype = dtype_from_name(text);
  if (!dtype || !is_compute_dtype(*dtype)) bad_input("{}: given \"{}\", expected f32, bf16 or f16", option, text);
  return *dtype;
}

void parse_activation(const std::string& text, MoeConfig& config) {
  const auto colon = text.find(':');
  config.activation = activation_from_name(text.substr(0, colon));
  config.activation_params = {};
  if (!is_gated(config.activation)) config.w13_layout = W13Layout::gate_up;
  if (colon == std::string::npos) return;
  for (const std::string& constant : split(text.substr(colon + 1), ','))
    set_constant(config.activation_params, constant);
}

template <class Part>
std::string part_name(const char* option, const PartList<Part>& list, const std::string& text) {
  std::string known;
  for (const auto& entry : list.entries()) {
    if (entry.name == text || entry.name.substr(entry.name.find('/') + 1) == text) return entry.name;
    known += (known.empty() ? "" : ", ") + entry.name;
  }
  bad_input("{}: unknown part \"{}\"; registered: {}", option, text, known);
}

template std::string part_name(const char*, const PartList<Router>&, const std::string&);
template std::string part_name(const char*, const PartList<PrepareFinalize>&, const std::string&);
template std::string part_name(const char*, const PartList<Experts>&, const std::string&);

}  // namespace conclave::cli
