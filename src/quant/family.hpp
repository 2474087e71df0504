// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What differs between the families of formats: how a group's scale follows from its values, and how a run of elements
// that share a scale becomes codes and back. Everything else (groups, rows, tensors) is common.
#pragma once

#include <cmath>
#include <cstdint>

namespace conclave::quant {

/// Scales of groups that are zero or nearly so come from this instead: dividing by it gives zeros, not NaN, and what is
/// far below it does not become the largest code.
inline constexpr float kSmallestAmax = 1e-12f;

/// What a scale is computed from. Order of add() and merge() does not matter.
struct GroupStats {
  float low = 0.0f;  ///< At most 0.
  float high = 0.0f;
  bool finite = true;

  void add(const float* x, std::int64_t count) noexcept {
    for (std::int64_t i = 0; i < count; ++i) {
      low = x[i] < low ? x[i] : low;
      high = x[i] > high ? x[i] : high;
      finite = finite && std::isfinite(x[i]);
    }
  }
  void merge(const GroupStats& other) noexcept {
    low = other.low < low ? other.low : low;
    high = other.high > high ? other.high : high;
    finite = finite && other.finite;
  }
  float amax() const noexcept { return high > -low ? high : -low; }
};

struct GroupScale {
  float value = 1.0f;
  std::uint8_t zero_point = 0;
};

struct Family {
  /// The scale of a group, exactly representable in the scale's own type; NaN for values that are not finite.
  /// `global` is the scale above it, or 1.
  GroupScale (*scale_of)(const GroupStats& stats, float global);
  /// Elements [first, first + count) of a packed row. `scale` has the global one multiplied in. `first` is even.
  void (*encode)(const float* x, std::int64_t first, std::int64_t count, GroupScale scale, std::uint8_t* row);
  void (*decode)(const std::uint8_t* row, std::int64_t first, std::int64_t count, GroupScale scale, float* out);
};

const Family& fp8_family() noexcept;
const Family& mxfp8_family() noexcept;
const Family& mxfp4_family() noexcept;
const Family& nvfp4_family() noexcept;
const Family& int8_family() noexcept;
const Family& int4_family() noexcept;
const Family& int4_zp_family() noexcept;

/// The global scale of nvfp4, as it decodes.
float nvfp4_global_scale(const GroupStats& stats) noexcept;

/// Codecs of runs that two families share.
void encode_e4m3(const float* x, std::int64_t first, std::int64_t count, GroupScale scale, std::uint8_t* row);
void decode_e4m3(const std::uint8_t* row, std::int64_t first, std::int64_t count, GroupScale scale, float* out);
void encode_e2m1(const float* x, std::int64_t first, std::int64_t count, GroupScale scale, std::uint8_t* row);
void decode_e2m1(const std::uint8_t* row, std::int64_t first, std::int64_t count, GroupScale scale, float* out);

/// Codes of consecutive elements into halves of bytes; the half behind an odd last element is zero.
template <class CodeOf>
void pack_nibbles(std::int64_t first, std::int64_t count, std::uint8_t* row, CodeOf code_of) {
  for (std::int64_t i = 0; i < count; i += 2) {
    const std::uint8_t high = i + 1 < count ? code_of(i + 1) : std::uint8_t{0};
    row[(first + i) / 2] = static_cast<std::uint8_t>(code_of(i) | (high << 4));
  }
}

}  // namespace conclave::quant
