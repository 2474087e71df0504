// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What is stricter than the JSON parser underneath, and what is laxer: Python's words for non-finite numbers.
#include "io/json_text.hpp"

#include <gtest/gtest.h>

#include "io/files.hpp"

namespace conclave::test {
namespace {

TEST(ParseJson, RefusesAKeyThatOccursTwiceInOneObjectOnly) {
  EXPECT_NO_THROW(parse_json(R"({"a":{"x":1},"b":{"x":1},"c":[{"x":1},{"x":2}]})", "f"));
  expect_error(ErrorKind::bad_file, {"f: ", "\"x\" occurs twice"},
               [] { parse_json(R"({"a":{"x":1,"y":{"x":2},"x":3}})", "f"); });
}

TEST(ParseJson, BoundsTheDepth) {
  const auto nested = [](std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_NO_THROW(parse_json(nested(64), "f"));
  expect_error(ErrorKind::bad_file, {"nested deeper"}, [&] { parse_json(nested(70), "f"); });
  expect_error(ErrorKind::bad_file, {"nested deeper"}, [&] { parse_json(std::string(1'000'000, '['), "f"); });
}

TEST(ParseJson, SaysWhereItStopped) {
  expect_error(ErrorKind::bad_file, {"f: not JSON at byte 6 of 7"}, [] { parse_json("{\"a\":x}", "f"); });
}

TEST(WithoutNonFinite, ReplacesWordsOutsideStringsOnly) {
  EXPECT_EQ(without_non_finite(R"({"a":[NaN, Infinity,-Infinity],"Infinity":"NaN \" Infinity"})"),
            R"({"a":[null, null,null],"Infinity":"NaN \" Infinity"})");
  EXPECT_EQ(without_non_finite("\"\\"), "\"\\");
}

TEST(JsonValues, SayWhatTheyWereGivenAndExpected) {
  const auto value = [](const char* text) { return parse_json(text, "f"); };
  EXPECT_EQ(json_integer(value("-7"), "w"), -7);
  EXPECT_EQ(json_unsigned(value("18446744073709551615"), "w"), ~std::uint64_t{0});
  EXPECT_EQ(json_number(value("3"), "w"), 3.0);
  expect_error(ErrorKind::bad_file, {"w: given 1.5, expected an integer"}, [&] { json_integer(value("1.5"), "w"); });
  expect_error(ErrorKind::bad_file, {"w: given true"}, [&] { json_integer(value("true"), "w"); });
  expect_error(ErrorKind::bad_file, {"given -1", "0 to 2^64"}, [&] { json_unsigned(value("-1"), "w"); });
  expect_error(ErrorKind::bad_file, {"given \"x\", expected a number"}, [&] { json_number(value("\"x\""), "w"); });
  expect_error(ErrorKind::bad_file, {"given 1, expected true or false"}, [&] { json_boolean(value("1"), "w"); });
  expect_error(ErrorKind::bad_file, {"given an array of 2, expected a string"},
               [&] { json_string(value("[1,2]"), "w"); });
}

}  // namespace
}  // namespace conclave::test
