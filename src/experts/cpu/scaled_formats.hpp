// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The panels of quantised weights: which keys share one, and how it is cut. k is padded to a whole group, which is why
// groups are no larger than they must be.
#pragma once

#include "experts/cpu/engine.hpp"

namespace conclave::experts::grouped {

/// Tensor and channel scales repeat every 128 values: 3 % of the bytes, and one kernel for three keys.
inline constexpr QuantKey kInt8Keys[] = {QuantKey::int8_tensor, QuantKey::int8_channel, QuantKey::int8_group128};
inline constexpr ScaledFormat kInt8Format{kInt8Keys, 8, 128, 128, DType::f32, false, false, CodeOrder::quads};

inline constexpr QuantKey kFp8Keys[] = {QuantKey::fp8_tensor, QuantKey::fp8_channel, QuantKey::fp8_block128};
inline constexpr ScaledFormat kFp8Format{kFp8Keys, 8, 128, 128, DType::f32, false, false, CodeOrder::quads};

inline constexpr QuantKey kMxfp8Keys[] = {QuantKey::mxfp8};
inline constexpr ScaledFormat kMxfp8Format{kMxfp8Keys, 8, 32, 32, DType::e8m0, false, false, CodeOrder::quads};

/// Zero points always: symmetric codes have 8.
inline constexpr QuantKey kInt4Group128Keys[] = {QuantKey::int4_group128, QuantKey::int4_group128_zp,
                                                 QuantKey::int4_channel, QuantKey::int4_channel_zp};
inline constexpr ScaledFormat kInt4Group128Format{kInt4Group128Keys, 4,     128,  128,
                                                  DType::f32,        false, true, CodeOrder::quads};
inline constexpr QuantKey kInt4Group64Keys[] = {QuantKey::int4_group64, QuantKey::int4_group64_zp};
inline constexpr ScaledFormat kInt4Group64Format{kInt4Group64Keys, 4,     64,   64,
                                                 DType::f32,       false, true, CodeOrder::quads};
inline constexpr QuantKey kInt4Group32Keys[] = {QuantKey::int4_group32, QuantKey::int4_group32_zp};
inline constexpr ScaledFormat kInt4Group32Format{kInt4Group32Keys, 4,     32,   32,
                                                 DType::f32,       false, true, CodeOrder::quads};

inline constexpr QuantKey kMxfp4Keys[] = {QuantKey::mxfp4};
inline constexpr ScaledFormat kMxfp4Format{kMxfp4Keys, 4, 32, 32, DType::e8m0, false, false, CodeOrder::quads};

/// 256 values share the columns' global scales: 3 % of the bytes.
inline constexpr QuantKey kNvfp4Keys[] = {QuantKey::nvfp4};
inline constexpr ScaledFormat kNvfp4Format{kNvfp4Keys, 4, 256, 16, DType::fp8_e4m3, true, false, CodeOrder::quads};

/// The same panels with their codes in another order.
constexpr ScaledFormat in_order(ScaledFormat format, CodeOrder order) {
  format.order = order;
  return format;
}
inline constexpr ScaledFormat kFp8Pairs = in_order(kFp8Format, CodeOrder::pairs);
inline constexpr ScaledFormat kMxfp8Pairs = in_order(kMxfp8Format, CodeOrder::pairs);
inline constexpr ScaledFormat kInt4Group128Octets = in_order(kInt4Group128Format, CodeOrder::octets);
inline constexpr ScaledFormat kInt4Group64Octets = in_order(kInt4Group64Format, CodeOrder::octets);
inline constexpr ScaledFormat kInt4Group32Octets = in_order(kInt4Group32Format, CodeOrder::octets);
inline constexpr ScaledFormat kMxfp4Octets = in_order(kMxfp4Format, CodeOrder::octets);
inline constexpr ScaledFormat kNvfp4Octets = in_order(kNvfp4Format, CodeOrder::octets);

}  // namespace conclave::experts::grouped
