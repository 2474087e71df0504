// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What a quantised tensor is made of: element type, scales, their type and the group that one scale covers. Every key
// of the reference has its name here; a part says in supports() which keys it computes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "conclave/dtype.hpp"

namespace conclave {

/// Rows and columns that share one scale; -1 is the full extent.
struct GroupShape {
  std::int64_t rows = -1;
  std::int64_t cols = -1;
  bool operator==(const GroupShape&) const = default;
};

struct ScaleDesc {
  DType dtype = DType::f32;
  bool dynamic = false;  ///< Computed from the data at run time; else part of the checkpoint.
  GroupShape group{};
  bool operator==(const ScaleDesc&) const = default;
};

/// Named schemes. `none` is unquantised (the dtype of the tensor itself).
enum class QuantKey : std::uint8_t {
  none,
  fp8_tensor,           ///< e4m3, static f32 per tensor
  fp8_tensor_dynamic,   ///< e4m3, dynamic f32 per tensor
  fp8_token,            ///< e4m3, dynamic f32 per token
  fp8_channel,          ///< e4m3, static f32 per output channel
  fp8_block128,         ///< e4m3, f32 per 128x128 block (weights) or 1x128 (activations, dynamic)
  fp8_block64,          ///< e4m3, dynamic f32 per 1x64
  mxfp8,                ///< e4m3, e8m0 per 1x32
  mxfp4,                ///< e2m1, e8m0 per 1x32
  nvfp4,                ///< e2m1, e4m3 per 1x16, f32 per tensor
  nvfp4_token,          ///< e2m1, e4m3 per 1x16, dynamic f32 per token
  int8_tensor,          ///< int8, static f32 per tensor
  int8_tensor_dynamic,  ///< int8, dynamic f32 per tensor
  int8_token,           ///< int8, dynamic f32 per token
  int8_channel,         ///< int8, static f32 per output channel
  int8_group128,        ///< int8, f32 per 1x128
  int4_group32,         ///< int4 symmetric, per 1x32
  int4_group64,
  int4_group128,
  int4_channel,     ///< int4 symmetric, one group for the whole row
  int4_group32_zp,  ///< int4 with zero points
  int4_group64_zp,
  int4_group128_zp,
  int4_channel_zp,
};

/// What a key means, from one table.
struct QuantScheme {
  DType element = DType::f32;  ///< i8 also stands for int4 (see bits).
  int bits = 0;                ///< Bits of one element; 0 for `none`.
  std::optional<ScaleDesc> scale;
  std::optional<ScaleDesc> scale2;
  bool symmetric = true;
};

QuantScheme scheme_of(QuantKey key) noexcept;
std::string_view name_of(QuantKey key) noexcept;
/// Throws Error naming the value and every legal name.
QuantKey quant_key_from_name(std::string_view name);
std::span<const QuantKey> all_quant_keys() noexcept;
/// "e2m1,scale(e4m3,static,1x16),scale2(f32,static,tensor),symmetric"
std::string describe(QuantKey key);

struct QuantConfig {
  QuantKey weights = QuantKey::none;
  QuantKey activations = QuantKey::none;
  bool operator==(const QuantConfig&) const = default;
};

/// Bytes of a weight matrix [rows, cols] with its scales under `key`; `dtype` is the element when key is none.
std::int64_t weight_bytes(QuantKey key, DType dtype, std::int64_t rows, std::int64_t cols) noexcept;

}  // namespace conclave
