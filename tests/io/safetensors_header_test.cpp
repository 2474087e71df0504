// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Every way in which a file can be malformed, one row each: header, data, and what the message must name.
#include "io/safetensors_header.hpp"

#include <gtest/gtest.h>

#include "io/files.hpp"

namespace conclave::test {
namespace {

struct Malformed {
  const char* name;
  std::string header;
  std::string data;
  std::vector<std::string> says;
};

std::vector<Malformed> malformed() {
  const std::string nested(100, '[');
  return {
      {"NotAnObject", "[1]", "", {"does not start with '{'"}},
      {"NotJson", "{\"a\": }", "", {"not JSON at byte 7"}},
      {"Empty", "", "", {"does not start with '{'"}},
      {"TrailingText", "{} x", "", {"not JSON"}},
      {"NotUtf8", "{\"\xff\": 1}", "", {"not JSON"}},
      {"DuplicateTensor",
       R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       "xy",
       {"\"a\" occurs twice"}},
      {"DuplicateField",
       R"({"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})",
       "x",
       {"\"dtype\" occurs twice"}},
      {"Nested", "{\"a\":" + nested, "", {"nested deeper than 64"}},
      {"HugeNumber", R"({"a":{"dtype":"U8","shape":[1e999],"data_offsets":[0,1]}})", "x", {"out of range"}},
      {"TensorNotObject", R"({"a":3})", "", {"tensor \"a\"", "given 3", "an object"}},
      {"NoDtype", R"({"a":{"shape":[1],"data_offsets":[0,1]}})", "x", {"\"a\"", "no \"dtype\""}},
      {"NoShape", R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", "x", {"\"a\"", "no \"shape\""}},
      {"NoOffsets", R"({"a":{"dtype":"U8","shape":[1]}})", "x", {"\"a\"", "no \"data_offsets\""}},
      {"UnknownField",
       R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"stride":1}})",
       "x",
       {"\"a\"", "unknown key \"stride\""}},
      {"UnknownDtype", R"({"a":{"dtype":"F7","shape":[1],"data_offsets":[0,1]}})", "x", {"\"a\"", "\"F7\""}},
      {"DtypeOfOtherCase", R"({"a":{"dtype":"f32","shape":[1],"data_offsets":[0,4]}})", "xxxx", {"\"f32\""}},
      {"DtypeNotString",
       R"({"a":{"dtype":4,"shape":[1],"data_offsets":[0,1]}})",
       "x",
       {"dtype", "given 4", "a string"}},
      {"ShapeNotArray", R"({"a":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})", "x", {"shape 1", "an array"}},
      {"NegativeExtent",
       R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})",
       "x",
       {"\"a\"", "given -1", "0 or more"}},
      {"FractionalExtent",
       R"({"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})",
       "x",
       {"given 1.0", "an integer"}},
      {"ExtentBeyond63Bits",
       R"({"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1]}})",
       "x",
       {"given 9223372036854775808"}},
      {"OverflowingShape",
       R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})",
       "",
       {"\"a\"", "overflows"}},
      {"OverflowBeforeZero",
       R"({"a":{"dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0]}})",
       "",
       {"overflows"}},
      {"RankTooHigh",
       R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1],"data_offsets":[0,1]}})",
       "x",
       {"rank 6", "at most 5"}},
      {"HalfBytes", R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})", "xx", {"12 bits", "multiple of 8"}},
      {"OneOffset", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", "x", {"data_offsets", "[begin, end]"}},
      {"NegativeOffset",
       R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[-1,0]}})",
       "x",
       {"data_offsets", "given -1"}},
      {"ReversedOffsets", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", "x", {"[1, 0]", "begin <= end"}},
      {"WrongSize",
       R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})",
       "xxxx",
       {"\"a\"", "4 bytes", "expected 8"}},
      {"BeyondTheFile",
       R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
       "xxx",
       {"\"a\"", "[0, 4]", "at most 3", "truncated"}},
      {"Overlap",
       R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       "xxx",
       {"\"b\"", "[1, 3]", "overlap", "begin 2"}},
      {"Hole",
       R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
       "xxx",
       {"\"b\"", "hole", "begin 1"}},
      {"HoleAtTheStart",
       R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       "xx",
       {"\"a\"", "hole", "begin 0"}},
      {"BytesAfterTheLast",
       R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
       "xyz",
       {"3 bytes of data", "expected 1"}},
      {"MetadataNotObject", R"({"__metadata__":[]})", "", {"__metadata__", "an object"}},
      {"MetadataNotString", R"({"__metadata__":{"k":1}})", "", {"__metadata__", "\"k\"", "given 1", "a string"}},
  };
}

class MalformedHeader : public ::testing::TestWithParam<Malformed> {};

TEST_P(MalformedHeader, IsRefusedByName) {
  const std::string file = raw_safetensors(GetParam().header, GetParam().data);
  try {
    parse_safetensors_header(bytes_of_text(file), "some/file");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_file);
    EXPECT_TRUE(std::string(error.what()).starts_with("some/file: ")) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    for (const std::string& word : GetParam().says) EXPECT_THAT(error.what(), ::testing::HasSubstr(word));
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, MalformedHeader, ::testing::ValuesIn(malformed()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(SafetensorsHeader, RefusesEveryTruncation) {
  const std::string whole = raw_safetensors(R"({"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}})", "12345678");
  EXPECT_NO_THROW(parse_safetensors_header(bytes_of_text(whole), "f"));
  for (std::size_t n = 0; n < whole.size(); ++n) {
    const std::string part = whole.substr(0, n);
    EXPECT_THROW(parse_safetensors_header(bytes_of_text(part), "f"), Error) << n;
  }
}

TEST(SafetensorsHeader, RefusesLengthsBeyondFileAndLimit) {
  std::string file(8 + 2, '{');
  const auto set = [&](std::uint64_t length) {
    for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(length >> 8 * i);
    return bytes_of_text(file);
  };
  expect_error(ErrorKind::bad_file, {"header length 3", "at most 2", "10 bytes"},
               [&] { parse_safetensors_header(set(3), "f"); });
  expect_error(ErrorKind::bad_file, {"header length 100000001", "at most 100000000"},
               [&] { parse_safetensors_header(set(100'000'001), "f"); });
  expect_error(ErrorKind::bad_file, {"header length 18446744073709551615"},
               [&] { parse_safetensors_header(set(~std::uint64_t{0}), "f"); });
}

TEST(SafetensorsHeader, ControlCharactersOfANameStayOffTheTerminal) {
  const std::string file = raw_safetensors(R"({"a\n\u001b[31m":3})");
  expect_error(ErrorKind::bad_file, {"a\\x0a\\x1b[31m"}, [&] { parse_safetensors_header(bytes_of_text(file), "f"); });
}

TEST(SafetensorsHeader, SortsByDataAndAcceptsEmptyTensorsAnywhere) {
  const std::string file = raw_safetensors(
      R"( {"z":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"e":{"dtype":"F64","shape":[0,7],"data_offsets":[1,1]},)"
      R"("a":{"dtype":"I16","shape":[],"data_offsets":[1,3]},"__metadata__":{"k":"v"}}  )" +
          1,
      "xyz");
  const SafetensorsHeader header = parse_safetensors_header(bytes_of_text(file), "f");
  ASSERT_EQ(header.entries.size(), 3U);
  EXPECT_EQ(header.entries[0].name, "z");
  EXPECT_EQ(header.entries[1].name, "e");
  EXPECT_EQ(header.entries[2].name, "a");
  EXPECT_TRUE(header.entries[2].shape.empty());
  EXPECT_EQ(header.metadata.at("k"), "v");
}

TEST(SafetensorsHeader, KnowsEveryDtypeCode) {
  const std::vector<std::pair<std::string, int>> codes = {
      {"BOOL", 8},    {"U8", 8},   {"I8", 8},      {"I16", 16},    {"U16", 16},        {"F16", 16},
      {"BF16", 16},   {"I32", 32}, {"U32", 32},    {"F32", 32},    {"F64", 64},        {"I64", 64},
      {"U64", 64},    {"C64", 64}, {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8},
      {"F8_E8M0", 8}, {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6}};
  std::set<DType> seen;
  for (const auto& [code, bits] : codes) {
    const auto dtype = dtype_from_safetensors_code(code);
    ASSERT_TRUE(dtype) << code;
    EXPECT_EQ(bits_of(*dtype), bits) << code;
    EXPECT_EQ(safetensors_code(*dtype), code);
    seen.insert(*dtype);
  }
  EXPECT_EQ(seen.size(), codes.size());
}

}  // namespace
}  // namespace conclave::test
