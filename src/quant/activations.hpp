// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a row of activations as f32. Out: the same row as its quantised form would decode. Parts that compute in floats
// quantise with this, so that their numbers are those of a kernel on the codes.
#pragma once

#include "quant/format.hpp"

namespace conclave::quant {

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

  /// The scale of a tensor with these extremes, for a key that spans the batch.
  float batch_scale(const GroupStats& stats) const noexcept { return format_.family->scale_of(stats, 1.0f).value; }

 private:
  Format format_;
  bool scale_given_ = false;
};

}  // namespace conclave::quant
