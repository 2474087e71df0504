// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a row of activations as f32. Out: the same row as its quantised form would decode. Parts that compute in floats
// quantise with this, so that their numbers are those of a kernel on the codes.
#pragma once

#include "conclave/function_ref.hpp"
#include "quant/format.hpp"

namespace conclave::quant {

/// True if the scales of a row follow from the row alone and lie in one tensor: then it can be quantised before it
/// travels, and travels as codes. Not so: scales that a checkpoint has for each expert, a scale of the whole batch, and
/// nvfp4_token, which has a second scale above those of its groups.
bool codes_by_row(QuantKey activations) noexcept;

class ActivationQuantiser {
 public:
  /// With `none` it changes nothing. Throws Error for a key that is no format of activations.
  explicit ActivationQuantiser(QuantKey key);

  QuantKey key() const noexcept { return format_.key; }
  explicit operator bool() const noexcept { return format_.family != nullptr; }
  bool spans_the_batch() const noexcept { return quant::spans_the_batch(format_.key); }

  /// x := decoded(encoded(x)). `given` is the scale of the whole tensor where the key has one (a static scale, a global
  /// one, or batch_scale()); it is not looked at otherwise.
  void round_trip(float* x, std::int64_t count, float given) const noexcept;

  /// One row of codes with the scales of its groups, in the key's own types, `scale_stride` elements from one to the
  /// next; only where codes_by_row(). `load(first, count, to)` gives up to kPiece elements. decode(encode(x)) is what
  /// round_trip() makes of x, bit for bit.
  using Load = FunctionRef<void(std::int64_t first, std::int64_t count, float* to)>;
  static constexpr std::int64_t kPiece = 256;  ///< Even, as runs of halves must start.
  void encode(std::int64_t count, Load load, std::uint8_t* codes, void* scales, std::int64_t scale_stride) const;
  void decode(const std::uint8_t* codes, const void* scales, std::int64_t scale_stride, std::int64_t count,
              float* x) const noexcept;

  /// The scale of a tensor with these extremes, for a key that spans the batch.
  float batch_scale(const GroupStats& stats) const noexcept { return format_.family->scale_of(stats, 1.0f).value; }

 private:
  Format format_;
  bool scale_given_ = false;
};

}  // namespace conclave::quant
