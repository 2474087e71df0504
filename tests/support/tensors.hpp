// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Tensors for tests: random, from a list of numbers, poisoned; and their elements as double. The conversions of bf16
// and f16 are written here a second time, by arithmetic instead of bit tricks, so that tests do not trust what they
// test.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <random>
#include <stdexcept>
#include <vector>

#include "conclave/tensor.hpp"
#include "conclave/workspace.hpp"

namespace conclave::test {

using Shape = std::vector<std::int64_t>;

/// An IEEE-like 16-bit format by the widths of its fields.
struct Float16Format {
  int mantissa_bits;
  int exponent_bits;
};
inline constexpr Float16Format kBf16{7, 8};
inline constexpr Float16Format kF16{10, 5};

inline double decode(std::uint16_t bits, Float16Format f) {
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  const int mantissa = bits & ((1 << f.mantissa_bits) - 1);
  const int exponent = (bits >> f.mantissa_bits) & ((1 << f.exponent_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << f.exponent_bits) - 1) return mantissa != 0 ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - f.mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << f.mantissa_bits), exponent - bias - f.mantissa_bits);
}

/// Round to nearest, ties to even; subnormals kept; overflow to infinity.
inline std::uint16_t encode(double x, Float16Format f) {
  const int sign = std::signbit(x) ? 0x8000 : 0;
  const int max_exponent = (1 << f.exponent_bits) - 1;
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  const int infinity = max_exponent << f.mantissa_bits;
  if (std::isnan(x)) return static_cast<std::uint16_t>(sign | infinity | (1 << (f.mantissa_bits - 1)));
  const double a = std::fabs(x);
  if (std::isinf(a)) return static_cast<std::uint16_t>(sign | infinity);
  if (a == 0.0) return static_cast<std::uint16_t>(sign);
  int exponent = std::max(std::ilogb(a), 1 - bias);
  const double units = std::nearbyint(std::ldexp(a, f.mantissa_bits - exponent));
  // A carry out of the mantissa adds into the exponent field, as it does in hardware.
  const auto field =
      static_cast<std::int64_t>(units) + (static_cast<std::int64_t>(exponent + bias - 1) << f.mantissa_bits);
  return static_cast<std::uint16_t>(sign | static_cast<int>(std::min<std::int64_t>(field, infinity)));
}

inline std::int64_t offset_of(const ConstTensorView& v, std::initializer_list<std::int64_t> index) {
  std::int64_t offset = 0;
  int d = 0;
  for (std::int64_t i : index) offset += i * v.stride(d++);
  return offset;
}

/// Element at an offset counted in elements.
inline double load(const ConstTensorView& v, std::int64_t offset) {
  switch (v.dtype) {
    case DType::f32:
      return v.as<float>()[offset];
    case DType::f64:
      return v.as<double>()[offset];
    case DType::bf16:
      return decode(v.as<std::uint16_t>()[offset], kBf16);
    case DType::f16:
      return decode(v.as<std::uint16_t>()[offset], kF16);
    case DType::i32:
      return v.as<std::int32_t>()[offset];
    case DType::i64:
      return static_cast<double>(v.as<std::int64_t>()[offset]);
    default:
      throw std::logic_error("test::load: dtype");
  }
}
inline void store(const TensorView& v, std::int64_t offset, double x) {
  switch (v.dtype) {
    case DType::f32:
      v.as<float>()[offset] = static_cast<float>(x);
      return;
    case DType::f64:
      v.as<double>()[offset] = x;
      return;
    case DType::bf16:
      v.as<std::uint16_t>()[offset] = encode(x, kBf16);
      return;
    case DType::f16:
      v.as<std::uint16_t>()[offset] = encode(x, kF16);
      return;
    case DType::i32:
      v.as<std::int32_t>()[offset] = static_cast<std::int32_t>(x);
      return;
    case DType::i64:
      v.as<std::int64_t>()[offset] = static_cast<std::int64_t>(x);
      return;
    default:
      throw std::logic_error("test::store: dtype");
  }
}

inline double at(const ConstTensorView& v, std::initializer_list<std::int64_t> index) {
  return load(v, offset_of(v, index));
}
inline void set(const TensorView& v, std::initializer_list<std::int64_t> index, double x) {
  store(v, offset_of(v, index), x);
}

/// All elements in row-major order, whatever the strides.
inline std::vector<double> values(const ConstTensorView& v) {
  std::vector<double> out;
  const std::int64_t n = v.numel();
  for (std::int64_t flat = 0; flat < n; ++flat) {
    std::int64_t rest = flat;
    std::int64_t offset = 0;
    for (int d = v.rank - 1; d >= 0; --d) {
      offset += rest % v.size(d) * v.stride(d);
      rest /= v.size(d);
    }
    out.push_back(load(v, offset));
  }
  return out;
}

inline Tensor tensor_of(DType dtype, const Shape& shape, const std::vector<double>& list) {
  Tensor t(dtype, shape);
  if (static_cast<std::int64_t>(list.size()) != t.view().numel()) throw std::logic_error("test::tensor_of: count");
  for (std::size_t i = 0; i < list.size(); ++i) store(t, static_cast<std::int64_t>(i), list[i]);
  return t;
}

/// Normally distributed with standard deviation `scale`, rounded to the dtype.
inline Tensor random_tensor(DType dtype, const Shape& shape, std::uint64_t seed, double scale = 1.0) {
  Tensor t(dtype, shape);
  std::mt19937_64 bits(seed * 0x9E3779B97F4A7C15ull + 1);
  std::normal_distribution<double> normal(0.0, scale);
  for (std::int64_t i = 0; i < t.view().numel(); ++i) store(t, i, normal(bits));
  return t;
}

/// Every byte 0xFF: NaN in every float type, -1 in every signed integer.
inline void poison(const TensorView& contiguous) {
  if (contiguous.numel() > 0) std::memset(contiguous.data, 0xFF, static_cast<std::size_t>(contiguous.bytes()));
}
inline Tensor poisoned_tensor(DType dtype, const Shape& shape) {
  Tensor t(dtype, shape);
  poison(t);
  return t;
}

/// i32 [num_tokens, top_k]: distinct ids in [0, num_experts) in each row.
inline Tensor random_ids(std::int64_t num_tokens, std::int64_t top_k, std::int64_t num_experts, std::uint64_t seed) {
  Tensor t(DType::i32, {num_tokens, top_k});
  std::mt19937_64 bits(seed * 0x9E3779B97F4A7C15ull + 2);
  std::vector<std::int32_t> deck(static_cast<std::size_t>(num_experts));
  for (std::size_t e = 0; e < deck.size(); ++e) deck[e] = static_cast<std::int32_t>(e);
  for (std::int64_t m = 0; m < num_tokens; ++m)
    for (std::int64_t j = 0; j < top_k; ++j) {
      const auto from = static_cast<std::size_t>(j);
      std::swap(deck[from], deck[from + bits() % (deck.size() - from)]);
      set(t, {m, j}, deck[from]);
    }
  return t;
}

/// [num_tokens, top_k] in (0, 1).
inline Tensor random_weights(DType dtype, std::int64_t num_tokens, std::int64_t top_k, std::uint64_t seed) {
  Tensor t(dtype, {num_tokens, top_k});
  std::mt19937_64 bits(seed * 0x9E3779B97F4A7C15ull + 3);
  std::uniform_real_distribution<double> uniform(0.05, 1.0);
  for (std::int64_t i = 0; i < t.view().numel(); ++i) store(t, i, uniform(bits));
  return t;
}

/// ||a - b|| / ||b||; infinite if one side has a NaN or infinity that the other lacks; 0 if both are all zeros.
inline double rel_error(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return INFINITY;
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isfinite(a[i]) != std::isfinite(b[i])) return INFINITY;
    if (!std::isfinite(a[i])) continue;
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  if (difference == 0) return 0;
  return std::sqrt(difference / norm);
}
inline double rel_error(const ConstTensorView& a, const std::vector<double>& b) {
  return rel_error(values(a), b);
}

inline bool same_bytes(const ConstTensorView& a, const ConstTensorView& b) {
  return a.dtype == b.dtype && a.bytes() == b.bytes() &&
         (a.bytes() == 0 || std::memcmp(a.data, b.data, static_cast<std::size_t>(a.bytes())) == 0);
}

/// Memory of exactly the bytes that `carve(Arena&)` asks for, filled with 0xFF, and an arena over it. Guard bytes
/// behind it show a write past the end.
class PoisonedArena {
 public:
  template <class Carve>
  explicit PoisonedArena(Carve&& carve) {
    Arena measure = Arena::measuring();
    carve(measure);
    bytes_ = measure.peak();
    memory_.assign(static_cast<std::size_t>(bytes_ + kWorkspaceAlignment + kGuard), std::byte{0xFF});
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    const auto align = static_cast<std::uintptr_t>(kWorkspaceAlignment);
    start_ = memory_.data() + ((address + align - 1) / align * align - address);
  }
  Arena arena() const { return Arena(std::span<std::byte>(start_, static_cast<std::size_t>(bytes_)), Device{}); }
  std::int64_t bytes() const { return bytes_; }
  bool guard_intact() const {
    for (std::int64_t i = 0; i < kGuard; ++i)
      if (start_[bytes_ + i] != std::byte{0xFF}) return false;
    return true;
  }

 private:
  static constexpr std::int64_t kGuard = 64;
  std::int64_t bytes_ = 0;
  std::vector<std::byte> memory_;
  std::byte* start_ = nullptr;
};

}  // namespace conclave::test
