// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The round trip of activations.hpp, through the codecs of weights.
#include "quant/activations.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "quant/scales.hpp"

namespace conclave::quant {
namespace {

constexpr std::int64_t kPiece = ActivationQuantiser::kPiece;

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

/// f(group, first, count) for the groups of a row.
template <class F>
void for_each_group(const Format& format, std::int64_t count, F&& f) {
  const std::int64_t width = format.group_cols(count);
  for (std::int64_t group = 0, first = 0; first < count; ++group, first += width)
    f(group, first, std::min(width, count - first));
}

/// f(first, count) for pieces of [first, first + count).
template <class F>
void for_each_piece(std::int64_t first, std::int64_t count, F&& f) {
  for (std::int64_t at = 0; at < count; at += kPiece) f(first + at, std::min(kPiece, count - at));
}

/// One row of scales, a stride apart.
template <class View, class Pointer>
View scale_row(Pointer scales, DType dtype, std::int64_t groups, std::int64_t stride) {
  View view(scales, dtype, {1, groups});
  view.strides[1] = stride;
  return view;
}

}  // namespace

bool codes_by_row(QuantKey activations) noexcept {
  return activations != QuantKey::none && activations != QuantKey::nvfp4_token && !has_static_scale(activations) &&
         !spans_the_batch(activations);
}

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

void ActivationQuantiser::encode(std::int64_t count, Load load, std::uint8_t* codes, void* scales,
                                 std::int64_t scale_stride) const {
  const auto row = scale_row<TensorView>(scales, format_.scale_dtype, format_.col_groups(count), scale_stride);
  float piece[kPiece];
  for_each_group(format_, count, [&](std::int64_t group, std::int64_t begin, std::int64_t size) {
    GroupStats stats;
    for_each_piece(begin, size, [&](std::int64_t first, std::int64_t n) {
      load(first, n, piece);
      stats.add(piece, n);
    });
    const GroupScale scale = format_.family->scale_of(stats, 1.0f);
    set_scale(row, format_.scale_dtype, 0, group, scale.value);
    for_each_piece(begin, size, [&](std::int64_t first, std::int64_t n) {
      load(first, n, piece);
      format_.family->encode(piece, first, n, scale, codes);
    });
  });
}

void ActivationQuantiser::decode(const std::uint8_t* codes, const void* scales, std::int64_t scale_stride,
                                 std::int64_t count, float* x) const noexcept {
  const auto row = scale_row<ConstTensorView>(scales, format_.scale_dtype, format_.col_groups(count), scale_stride);
  for_each_group(format_, count, [&](std::int64_t group, std::int64_t first, std::int64_t n) {
    format_.family->decode(codes, first, n, {scale_at(row, format_.scale_dtype, 0, group)}, x + first);
  });
}

}  // namespace conclave::quant
