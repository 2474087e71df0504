// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
#include "quant/elements.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace conclave::quant {
namespace {

struct CodeAndValue {
  int code;
  float value;
};

/// tests/data/quant/<name>.txt: lines of a code and a hexadecimal number, made by tools/make_quant_fixtures.py.
std::vector<CodeAndValue> fixture(const std::string& name) {
  std::ifstream file(std::string(CONCLAVE_SOURCE_DIR) + "/tests/data/quant/" + name + ".txt");
  std::vector<CodeAndValue> rows;
  int code;
  std::string value;
  while (file >> code >> value) rows.push_back({code, std::strtof(value.c_str(), nullptr)});
  return rows;
}

/// The same number, the same zero, or both NaN.
void expect_same(float given, float expected, int code) {
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(given)) << "code " << code;
  } else {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(given), std::bit_cast<std::uint32_t>(expected)) << "code " << code;
  }
}

TEST(Elements, EveryCodeOfE4m3) {
  const auto rows = fixture("e4m3_codes");
  ASSERT_EQ(rows.size(), 256U);
  for (const auto& [code, value] : rows) {
    expect_same(e4m3_to_f32(static_cast<std::uint8_t>(code)), value, code);
    if (!std::isnan(value)) {
      EXPECT_EQ(f32_to_e4m3(value), code);
    }
  }
}

TEST(Elements, EveryCodeOfE2m1) {
  const auto rows = fixture("e2m1_codes");
  ASSERT_EQ(rows.size(), 16U);
  for (const auto& [code, value] : rows) {
    expect_same(e2m1_to_f32(static_cast<std::uint8_t>(code)), value, code);
    EXPECT_EQ(f32_to_e2m1(value), code);
  }
}

TEST(Elements, EveryCodeOfE8m0) {
  const auto rows = fixture("e8m0_codes");
  ASSERT_EQ(rows.size(), 256U);
  for (const auto& [code, value] : rows) {
    expect_same(e8m0_to_f32(static_cast<std::uint8_t>(code)), value, code);
    EXPECT_EQ(f32_to_e8m0(value), code);
  }
}

TEST(Elements, E4m3RoundsToNearestTiesToEvenAndSaturates) {
  const auto rows = fixture("e4m3_roundings");
  ASSERT_GT(rows.size(), 1000U);
  for (const auto& [code, value] : rows) EXPECT_EQ(f32_to_e4m3(value), code) << value;
}

TEST(Elements, E2m1RoundsToNearestTiesToEvenAndSaturates) {
  const auto rows = fixture("e2m1_roundings");
  ASSERT_GT(rows.size(), 400U);
  for (const auto& [code, value] : rows) EXPECT_EQ(f32_to_e2m1(value), code) << value;
}

TEST(Elements, WhatIsNotFinite) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(f32_to_e4m3(nan), 0x7F);
  EXPECT_EQ(f32_to_e4m3(-nan), 0xFF);
  EXPECT_EQ(f32_to_e4m3(infinity), 0x7E);
  EXPECT_EQ(f32_to_e4m3(-infinity), 0xFE);
  EXPECT_EQ(f32_to_e2m1(infinity), 7);
  EXPECT_EQ(f32_to_e2m1(-infinity), 15);
  EXPECT_EQ(f32_to_e2m1(nan) & 7, 0);
  EXPECT_EQ(f32_to_e8m0(nan), 0xFF);
}

TEST(Elements, ZerosKeepTheirSign) {
  EXPECT_EQ(f32_to_e4m3(-0.0f), 0x80);
  EXPECT_EQ(f32_to_e4m3(-1e-30f), 0x80);
  EXPECT_EQ(f32_to_e2m1(-0.0f), 8);
}

TEST(Elements, TheFirstOfTwoNibblesIsTheLowHalf) {
  const std::uint8_t row[] = {0x21, 0x43};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(nibble(row, i), i + 1);
}

}  // namespace
}  // namespace conclave::quant
