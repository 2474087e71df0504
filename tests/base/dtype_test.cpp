// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Every dtype has a name that leads back to it, and sizes that do not overflow.
#include "conclave/dtype.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace conclave {
namespace {

TEST(DType, NamesAreUniqueAndInvertible) {
  std::set<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(DType::fp4_e2m1); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_TRUE(names.insert(name_of(dtype)).second) << name_of(dtype);
    EXPECT_EQ(dtype_from_name(name_of(dtype)), dtype);
  }
  EXPECT_EQ(dtype_from_name("float"), std::nullopt);
  EXPECT_EQ(dtype_from_name(""), std::nullopt);
}

TEST(DType, BytesRoundUpForPackedTypes) {
  EXPECT_EQ(bytes_of(DType::fp4_e2m1, 5), 3);
  EXPECT_EQ(bytes_of(DType::fp6_e2m3, 5), 4);
  EXPECT_EQ(bytes_of(DType::bf16, 5), 10);
  EXPECT_EQ(bytes_of(DType::f64, 0), 0);
}

// Case 95: 512 experts of [2048, 4096]: the offset of the last one does not fit in 32 bits.
TEST(DType, OffsetsAre64Bit) {
  EXPECT_EQ(bytes_of(DType::u8, std::int64_t{511} * 2048 * 4096), 4286578688);
}

}  // namespace
}  // namespace conclave
