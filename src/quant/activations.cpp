// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The round trip of activations.hpp, through the codecs of weights.
#include "quant/activations.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace conclave::quant {
namespace {

/// Codes of a piece of a run; even, as runs of halves must start.
constexpr std::int64_t kPiece = 256;

void recode(const Family& family, float* x, std::int64_t count, GroupScale scale) noexcept {
  std::uint8_t codes[kPiece];
  for (std::int64_t begin = 0; begin < count; begin += kPiece) {
    const std::int64_t n = std::min(kPiece, count - begin);
    family.encode(x + begin, 0, n, scale, codes);
    family.decode(codes, 0, n, scale, x + begin);
  }
}

GroupStats stats_of(const float* x, std::int64_t count) noexcept {
  GroupStats stats;
  stats.add(x, count);
  return stats;
}

}  // namespace

ActivationQuantiser::ActivationQuantiser(QuantKey key) {
  if (key == QuantKey::none) return;
  const Support support = supports_key(key, QuantRole::activations);
  require(static_cast<bool>(support), "{}", support.reason());
  format_ = format_of(key, QuantRole::activations);
  scale_given_ = format_.scale_is_tensor_wide();
}

void ActivationQuantiser::round_trip(float* x, std::int64_t count, float given) const noexcept {
  if (format_.family == nullptr || count == 0) return;
  if (scale_given_) return recode(*format_.family, x, count, {given});
  float global = 1.0f;
  if (format_.global_group) global = format_.global_group->rows < 0 ? given : nvfp4_global_scale(stats_of(x, count));
  const std::int64_t width = format_.group_cols(count);
  for (std::int64_t first = 0; first < count; first += width) {
    const std::int64_t n = std::min(width, count - first);
    GroupScale scale = format_.family->scale_of(stats_of(x + first, n), global);
    scale.value *= global;
    recode(*format_.family, x + first, n, scale);
  }
}

}  // namespace conclave::quant
