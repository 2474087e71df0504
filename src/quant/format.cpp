// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The table: key -> family and roles. Elements, scales and groups come from scheme_of().
#include "quant/format.hpp"

#include <array>

#include "base/error.hpp"

namespace conclave::quant {
namespace {

enum class Roles : std::uint8_t { none, weights, activations, both };

struct FormatRow {
  QuantKey key;
  const Family& (*family)();
  Roles roles;
  bool short_last_group;
};

constexpr std::array<FormatRow, 24> kFormats{{
    {QuantKey::none, nullptr, Roles::both, false},
    {QuantKey::fp8_tensor, fp8_family, Roles::both, false},
    {QuantKey::fp8_tensor_dynamic, fp8_family, Roles::activations, false},
    {QuantKey::fp8_token, fp8_family, Roles::activations, false},
    {QuantKey::fp8_channel, fp8_family, Roles::weights, false},
    {QuantKey::fp8_block128, fp8_family, Roles::both, true},
    {QuantKey::fp8_block64, fp8_family, Roles::activations, true},
    {QuantKey::mxfp8, mxfp8_family, Roles::both, false},
    {QuantKey::mxfp4, mxfp4_family, Roles::both, false},
    {QuantKey::nvfp4, nvfp4_family, Roles::both, false},
    {QuantKey::nvfp4_token, nvfp4_family, Roles::activations, false},
    {QuantKey::int8_tensor, int8_family, Roles::both, false},
    {QuantKey::int8_tensor_dynamic, int8_family, Roles::activations, false},
    {QuantKey::int8_token, int8_family, Roles::activations, false},
    {QuantKey::int8_channel, int8_family, Roles::weights, false},
    {QuantKey::int8_group128, int8_family, Roles::weights, false},
    {QuantKey::int4_group32, int4_family, Roles::weights, false},
    {QuantKey::int4_group64, int4_family, Roles::weights, false},
    {QuantKey::int4_group128, int4_family, Roles::weights, false},
    {QuantKey::int4_channel, int4_family, Roles::weights, false},
    {QuantKey::int4_group32_zp, int4_zp_family, Roles::weights, false},
    {QuantKey::int4_group64_zp, int4_zp_family, Roles::weights, false},
    {QuantKey::int4_group128_zp, int4_zp_family, Roles::weights, false},
    {QuantKey::int4_channel_zp, int4_zp_family, Roles::weights, false},
}};

constexpr bool formats_are_ordered() {
  for (std::size_t i = 0; i < kFormats.size(); ++i)
    if (kFormats[i].key != static_cast<QuantKey>(i)) return false;
  return true;
}
static_assert(formats_are_ordered());

/// Null for a value that is no key.
const FormatRow* row_of(QuantKey key) noexcept {
  const auto index = static_cast<std::size_t>(key);
  return index < kFormats.size() ? &kFormats[index] : nullptr;
}

std::string_view name_of(QuantRole role) {
  return role == QuantRole::weights ? "weights" : "activations";
}

}  // namespace

Format format_of(QuantKey key, QuantRole role) {
  const FormatRow* row = row_of(key);
  require(row != nullptr, "quantisation key: given {}, expected 1 to {}", static_cast<int>(key), kFormats.size() - 1);
  require(row->family != nullptr, "quantisation key: given none, expected a format");
  const QuantScheme scheme = scheme_of(key);
  Format f;
  f.key = key;
  f.role = role;
  f.family = &row->family();
  f.bits = scheme.bits;
  f.element = scheme.bits == 4 ? DType::u8 : scheme.element;
  f.scale_dtype = scheme.scale->dtype;
  f.group = scheme.scale->group;
  if (key == QuantKey::fp8_block128 && role == QuantRole::activations) f.group.rows = 1;
  if (scheme.scale2) f.global_group = scheme.scale2->group;
  f.zero_points = !scheme.symmetric;
  f.short_last_group = row->short_last_group;
  return f;
}

Support supports_key(QuantKey key, QuantRole role) {
  const FormatRow* row = row_of(key);
  if (row == nullptr) return Support::no(fmt::format("quantisation of {} {}", name_of(role), static_cast<int>(key)));
  const Roles wanted = role == QuantRole::weights ? Roles::weights : Roles::activations;
  if (row->roles == Roles::both || row->roles == wanted) return Support::yes();
  const bool weights = role == QuantRole::weights;
  return Support::no(fmt::format("quantisation of {} {}, which is a format of {}", name_of(role),
                                 conclave::name_of(key), weights ? "activations" : "weights"));
}

Support supports_cols(QuantKey key, QuantRole role, std::string_view what, std::int64_t cols) {
  if (key == QuantKey::none) return Support::yes();
  const Format f = format_of(key, role);
  if (f.short_last_group || f.group.cols < 0 || cols % f.group.cols == 0) return Support::yes();
  return Support::no(fmt::format("{} {}, {} of {} takes multiples of {}", what, cols, conclave::name_of(key),
                                 name_of(role), f.group.cols));
}

bool has_static_scale(QuantKey activations) noexcept {
  return activations == QuantKey::fp8_tensor || activations == QuantKey::int8_tensor || activations == QuantKey::nvfp4;
}

bool spans_the_batch(QuantKey activations) noexcept {
  return activations == QuantKey::fp8_tensor_dynamic || activations == QuantKey::int8_tensor_dynamic;
}

}  // namespace conclave::quant
