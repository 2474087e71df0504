// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// One table: quantisation key -> name, element, bits, scales. The keys are those of vLLM's quant_utils (features of
// the reference), under names that say the granularity.
#include <fmt/format.h>

#include "base/names.hpp"
#include "conclave/quant.hpp"

namespace conclave {
namespace {

constexpr GroupShape kTensor{-1, -1};
constexpr GroupShape kToken{1, -1};
constexpr GroupShape kRow1x16{1, 16}, kRow1x32{1, 32}, kRow1x64{1, 64}, kRow1x128{1, 128};
constexpr GroupShape kBlock128{128, 128};

constexpr ScaleDesc fixed(GroupShape group, DType dtype = DType::f32) {
  return {dtype, false, group};
}
constexpr ScaleDesc dynamic(GroupShape group, DType dtype = DType::f32) {
  return {dtype, true, group};
}

struct QuantRow {
  QuantKey key;
  std::string_view name;
  QuantScheme scheme;
};

constexpr QuantScheme e4m3(ScaleDesc scale) {
  return {DType::fp8_e4m3, 8, scale, std::nullopt, true};
}
constexpr QuantScheme e2m1(ScaleDesc scale, std::optional<ScaleDesc> scale2 = std::nullopt) {
  return {DType::fp4_e2m1, 4, scale, scale2, true};
}
constexpr QuantScheme integer(int bits, ScaleDesc scale, bool symmetric = true) {
  return {DType::i8, bits, scale, std::nullopt, symmetric};
}

constexpr std::array<QuantRow, 24> kQuantKeys{{
    {QuantKey::none, "none", {}},
    {QuantKey::fp8_tensor, "fp8_tensor", e4m3(fixed(kTensor))},
    {QuantKey::fp8_tensor_dynamic, "fp8_tensor_dynamic", e4m3(dynamic(kTensor))},
    {QuantKey::fp8_token, "fp8_token", e4m3(dynamic(kToken))},
    {QuantKey::fp8_channel, "fp8_channel", e4m3(fixed(kToken))},
    {QuantKey::fp8_block128, "fp8_block128", e4m3(fixed(kBlock128))},
    {QuantKey::fp8_block64, "fp8_block64", e4m3(dynamic(kRow1x64))},
    {QuantKey::mxfp8, "mxfp8", e4m3(fixed(kRow1x32, DType::e8m0))},
    {QuantKey::mxfp4, "mxfp4", e2m1(fixed(kRow1x32, DType::e8m0))},
    {QuantKey::nvfp4, "nvfp4", e2m1(fixed(kRow1x16, DType::fp8_e4m3), fixed(kTensor))},
    {QuantKey::nvfp4_token, "nvfp4_token", e2m1(dynamic(kRow1x16, DType::fp8_e4m3), dynamic(kToken))},
    {QuantKey::int8_tensor, "int8_tensor", integer(8, fixed(kTensor))},
    {QuantKey::int8_tensor_dynamic, "int8_tensor_dynamic", integer(8, dynamic(kTensor))},
    {QuantKey::int8_token, "int8_token", integer(8, dynamic(kToken))},
    {QuantKey::int8_channel, "int8_channel", integer(8, fixed(kToken))},
    {QuantKey::int8_group128, "int8_group128", integer(8, fixed(kRow1x128))},
    {QuantKey::int4_group32, "int4_group32", integer(4, fixed(kRow1x32))},
    {QuantKey::int4_group64, "int4_group64", integer(4, fixed(kRow1x64))},
    {QuantKey::int4_group128, "int4_group128", integer(4, fixed(kRow1x128))},
    {QuantKey::int4_channel, "int4_channel", integer(4, fixed(kToken))},
    {QuantKey::int4_group32_zp, "int4_group32_zp", integer(4, fixed(kRow1x32), false)},
    {QuantKey::int4_group64_zp, "int4_group64_zp", integer(4, fixed(kRow1x64), false)},
    {QuantKey::int4_group128_zp, "int4_group128_zp", integer(4, fixed(kRow1x128), false)},
    {QuantKey::int4_channel_zp, "int4_channel_zp", integer(4, fixed(kToken), false)},
}};

constexpr const QuantRow& row(QuantKey key) {
  return kQuantKeys[static_cast<std::size_t>(key)];
}

constexpr auto kNames = [] {
  NameTable<QuantKey, kQuantKeys.size()> names{};
  for (std::size_t i = 0; i < kQuantKeys.size(); ++i) names[i] = {kQuantKeys[i].key, kQuantKeys[i].name};
  return names;
}();
constexpr auto kKeys = values_of(kNames);

constexpr bool quant_keys_are_ordered() {
  for (std::size_t i = 0; i < kQuantKeys.size(); ++i)
    if (kQuantKeys[i].key != static_cast<QuantKey>(i)) return false;
  return true;
}
static_assert(quant_keys_are_ordered());

std::string describe(const ScaleDesc& scale) {
  std::string group;
  if (scale.group == kTensor)
    group = "tensor";
  else if (scale.group == kToken)
    group = "row";
  else
    group = fmt::format("{}x{}", scale.group.rows, scale.group.cols);
  return fmt::format("({},{},{})", name_of(scale.dtype), scale.dynamic ? "dynamic" : "static", group);
}

/// How many groups of `group` (-1: the whole extent) cover `extent`.
std::int64_t groups(std::int64_t extent, std::int64_t group) noexcept {
  return group < 0 ? 1 : (extent + group - 1) / group;
}

}  // namespace

QuantScheme scheme_of(QuantKey key) noexcept {
  return row(key).scheme;
}
std::string_view name_of(QuantKey key) noexcept {
  return row(key).name;
}
QuantKey quant_key_from_name(std::string_view name) {
  return value_in(kNames, "quantisation key", name);
}
std::span<const QuantKey> all_quant_keys() noexcept {
  return kKeys;
}

std::string describe(QuantKey key) {
  const QuantScheme& s = row(key).scheme;
  if (s.bits == 0) return "unquantised";
  std::string text = s.bits == 4 && s.element == DType::i8 ? "int4" : std::string(name_of(s.element));
  if (s.scale) text += ",scale" + describe(*s.scale);
  if (s.scale2) text += ",scale2" + describe(*s.scale2);
  return text + (s.symmetric ? ",symmetric" : ",asymmetric");
}

std::int64_t weight_bytes(QuantKey key, DType dtype, std::int64_t rows, std::int64_t cols) noexcept {
  const QuantScheme& s = row(key).scheme;
  if (s.bits == 0) return bytes_of(dtype, rows * cols);
  std::int64_t bytes = (rows * cols * s.bits + 7) / 8;
  for (const auto& scale : {s.scale, s.scale2})
    if (scale) bytes += bytes_of(scale->dtype, groups(rows, scale->group.rows) * groups(cols, scale->group.cols));
  // Zero points are packed like the elements, one for each scale.
  if (!s.symmetric) bytes += (groups(rows, s.scale->group.rows) * groups(cols, s.scale->group.cols) * s.bits + 7) / 8;
  return bytes;
}

}  // namespace conclave
