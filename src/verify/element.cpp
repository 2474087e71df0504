// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: views. Out: elements as f64 and back, copies, hashes.
#include "verify/element.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.hpp"

namespace conclave::verify_detail {
namespace {

/// A binary float format narrower than f32.
struct Narrow {
  int mantissa_bits;
  int min_exponent;  ///< Of the smallest normal number.
  int max_exponent;
};
constexpr Narrow kBf16{7, -126, 127};
constexpr Narrow kF16{10, -14, 15};

double decode(std::uint16_t bits, Narrow format) {
  const int magnitude = bits & 0x7fff;
  const int exponent = magnitude >> format.mantissa_bits;
  const int mantissa = magnitude & ((1 << format.mantissa_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == format.max_exponent - format.min_exponent + 2)
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(mantissa, format.min_exponent - format.mantissa_bits);
  return sign *
         std::ldexp(mantissa + (1 << format.mantissa_bits), exponent - 1 + format.min_exponent - format.mantissa_bits);
}

std::uint16_t encode(double value, Narrow format) {
  const unsigned sign = std::signbit(value) ? 0x8000u : 0u;
  const unsigned infinity = static_cast<unsigned>(format.max_exponent - format.min_exponent + 2)
                            << format.mantissa_bits;
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | infinity | (1u << (format.mantissa_bits - 1)));
  const double magnitude = std::fabs(value);
  if (magnitude == 0) return static_cast<std::uint16_t>(sign);
  if (std::isinf(value)) return static_cast<std::uint16_t>(sign | infinity);
  const int exponent = std::max(std::ilogb(magnitude), format.min_exponent);
  // Steps of the last place; nearbyint rounds to even. A carry into the next exponent comes out right by itself, and
  // one beyond the largest exponent gives the pattern of infinity or more.
  const double steps = std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent));
  const double bits = std::ldexp(exponent - format.min_exponent, format.mantissa_bits) + steps;
  return static_cast<std::uint16_t>(sign | (bits >= infinity ? infinity : static_cast<unsigned>(bits)));
}

/// Codes of magnitude 0 to 126 increase with it; 127 is NaN.
double decode_e4m3(std::uint8_t code) {
  const int magnitude = code & 0x7f;
  if (magnitude == 0x7f) return std::numeric_limits<double>::quiet_NaN();
  const double value = magnitude < 8 ? std::ldexp(magnitude, -9) : std::ldexp(8 + magnitude % 8, magnitude / 8 - 10);
  return (code & 0x80) != 0 ? -value : value;
}

std::uint8_t encode_e4m3(double value) {
  const auto sign = static_cast<std::uint8_t>(std::signbit(value) ? 0x80 : 0);
  if (std::isnan(value)) return static_cast<std::uint8_t>(sign | 0x7f);
  std::uint8_t best = 0;
  for (std::uint8_t code = 1; code < 0x7f; ++code) {
    const double near = std::fabs(decode_e4m3(code) - std::fabs(value));
    const double so_far = std::fabs(decode_e4m3(best) - std::fabs(value));
    if (near < so_far || (near == so_far && code % 2 == 0)) best = code;
  }
  return static_cast<std::uint8_t>(sign | best);
}

double decode_e8m0(std::uint8_t code) {
  return code == 0xff ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, code - 127);
}

std::uint8_t encode_e8m0(double value) {
  if (!(value > 0)) return std::isnan(value) ? 0xff : 0;
  return static_cast<std::uint8_t>(std::clamp(std::ilogb(value), -127, 127) + 127);
}

template <class T>
double load_as(const ConstTensorView& view, std::int64_t offset) {
  return static_cast<double>(view.as<T>()[offset]);
}

}  // namespace

double load(const ConstTensorView& view, std::int64_t offset) {
  switch (view.dtype) {
    case DType::f32:
      return load_as<float>(view, offset);
    case DType::f64:
      return load_as<double>(view, offset);
    case DType::bf16:
      return decode(view.as<std::uint16_t>()[offset], kBf16);
    case DType::f16:
      return decode(view.as<std::uint16_t>()[offset], kF16);
    case DType::i32:
      return load_as<std::int32_t>(view, offset);
    case DType::i64:
      return load_as<std::int64_t>(view, offset);
    case DType::i8:
      return load_as<std::int8_t>(view, offset);
    case DType::u8:
      return load_as<std::uint8_t>(view, offset);
    case DType::fp8_e4m3:
      return decode_e4m3(view.as<std::uint8_t>()[offset]);
    case DType::e8m0:
      return decode_e8m0(view.as<std::uint8_t>()[offset]);
    default:
      fail(ErrorKind::invalid_argument,
           "dtype: given {}, expected f64, f32, bf16, f16, fp8_e4m3, e8m0, i64, i32, i8 or u8", name_of(view.dtype));
  }
}

void store(const TensorView& view, std::int64_t offset, double value) {
  switch (view.dtype) {
    case DType::f32:
      view.as<float>()[offset] = static_cast<float>(value);
      return;
    case DType::f64:
      view.as<double>()[offset] = value;
      return;
    case DType::bf16:
      view.as<std::uint16_t>()[offset] = encode(value, kBf16);
      return;
    case DType::f16:
      view.as<std::uint16_t>()[offset] = encode(value, kF16);
      return;
    case DType::i32:
      view.as<std::int32_t>()[offset] = static_cast<std::int32_t>(value);
      return;
    case DType::i64:
      view.as<std::int64_t>()[offset] = static_cast<std::int64_t>(value);
      return;
    case DType::i8:
      view.as<std::int8_t>()[offset] = static_cast<std::int8_t>(value);
      return;
    case DType::u8:
      view.as<std::uint8_t>()[offset] = static_cast<std::uint8_t>(value);
      return;
    case DType::fp8_e4m3:
      view.as<std::uint8_t>()[offset] = encode_e4m3(value);
      return;
    case DType::e8m0:
      view.as<std::uint8_t>()[offset] = encode_e8m0(value);
      return;
    default:
      fail(ErrorKind::invalid_argument,
           "dtype: given {}, expected f64, f32, bf16, f16, fp8_e4m3, e8m0, i64, i32, i8 or u8", name_of(view.dtype));
  }
}

std::vector<double> to_doubles(const ConstTensorView& view) {
  std::vector<double> values;
  values.reserve(static_cast<std::size_t>(view.numel()));
  for_each_offset(view, [&](std::int64_t offset) { values.push_back(load(view, offset)); });
  return values;
}

Tensor clone(const ConstTensorView& view) {
  Tensor copy(view.dtype, std::span<const std::int64_t>(view.shape.data(), static_cast<std::size_t>(view.rank)));
  const std::int64_t size = bits_of(view.dtype) / 8;
  std::byte* out = copy.as<std::byte>();
  for_each_offset(view, [&](std::int64_t offset) {
    std::memcpy(out, view.as<std::byte>() + offset * size, static_cast<std::size_t>(size));
    out += size;
  });
  return copy;
}

Tensor clone_strided(const ConstTensorView& view, TensorView& copy) {
  std::int64_t extent = view.numel() == 0 ? 0 : 1;
  for (int d = 0; d < view.rank && extent > 0; ++d) extent += (view.size(d) - 1) * view.stride(d);
  Tensor memory(view.dtype, {extent});
  poison(memory);
  copy = memory.view();
  copy.rank = view.rank;
  copy.shape = view.shape;
  copy.strides = view.strides;
  const std::int64_t size = bits_of(view.dtype) / 8;
  for_each_offset(view, [&](std::int64_t offset) {
    std::memcpy(copy.as<std::byte>() + offset * size, view.as<std::byte>() + offset * size,
                static_cast<std::size_t>(size));
  });
  return memory;
}

void poison(const Tensor& tensor) {
  const auto bytes = static_cast<std::size_t>(tensor.view().bytes());
  if (bytes > 0) std::memset(tensor.view().data, 0xFF, bytes);
}

bool bitwise_equal(const ConstTensorView& a, const ConstTensorView& b) {
  if (a.dtype != b.dtype || a.rank != b.rank) return false;
  for (int d = 0; d < a.rank; ++d)
    if (a.size(d) != b.size(d)) return false;
  const Tensor x = clone(a);
  const Tensor y = clone(b);
  const auto bytes = static_cast<std::size_t>(x.view().bytes());
  return bytes == 0 || std::memcmp(x.view().data, y.view().data, bytes) == 0;
}

std::uint64_t hash_of(const ConstTensorView& view) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  const std::int64_t size = bits_of(view.dtype) / 8;
  for_each_offset(view, [&](std::int64_t offset) {
    const auto* bytes = view.as<unsigned char>() + offset * size;
    for (std::int64_t i = 0; i < size; ++i) hash = (hash ^ bytes[i]) * 0x100000001b3ULL;
  });
  return hash;
}

}  // namespace conclave::verify_detail
