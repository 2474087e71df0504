// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Written files read back equal, are aligned, and appear whole or not at all.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>

#include "conclave/safetensors.hpp"
#include "io/files.hpp"

namespace conclave::test {
namespace {

TEST(WriteSafetensors, RoundTripsEveryDtype) {
  const TempFolder folder;
  std::vector<std::byte> data(8 * 24);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 7 + 3);
  std::vector<NamedTensor> tensors;
  for (int d = 0; d <= static_cast<int>(DType::fp4_e2m1); ++d)
    tensors.push_back(
        {std::string("t").append(std::to_string(d)), ConstTensorView(data.data(), static_cast<DType>(d), {3, 8})});
  tensors.push_back({"scalar", ConstTensorView(data.data(), DType::u8, {})});
  tensors.push_back({"nothing", ConstTensorView(nullptr, DType::f32, {0, 5})});
  tensors.push_back({"line\nbreak \"x\"", ConstTensorView(data.data(), DType::i16, {1})});
  write_safetensors(folder.path("f"), tensors, {{"k", "v \"quoted\""}});
  const SafetensorsFile file(folder.path("f"));
  EXPECT_EQ(file.tensors().size(), tensors.size());
  EXPECT_EQ(file.metadata().at("k"), "v \"quoted\"");
  for (const NamedTensor& t : tensors) {
    const ConstTensorView& found = file.get(t.name);
    EXPECT_EQ(to_string(found), to_string(t.view)) << t.name;
    if (t.view.bytes() == 0) continue;
    EXPECT_EQ(std::memcmp(found.data, t.view.data, static_cast<std::size_t>(t.view.bytes())), 0) << t.name;
  }
}

TEST(WriteSafetensors, EveryTensorIsAlignedInTheFileItself) {
  const TempFolder folder;
  const double data[4] = {};
  write_safetensors(folder.path("f"), {{"odd", ConstTensorView(data, DType::u8, {3})},
                                       {"f32", ConstTensorView(data, DType::f32, {3})},
                                       {"f64", ConstTensorView(data, DType::f64, {2})}});
  const std::string bytes = read_file(folder.path("f"));
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  EXPECT_EQ((8 + length) % 8, 0U);
  const SafetensorsFile file(folder.path("f"));
  EXPECT_EQ(file.tensors()[0].name, "f64");
  EXPECT_EQ(file.tensors()[1].name, "f32");
  EXPECT_EQ(file.tensors()[2].name, "odd");
}

TEST(WriteSafetensors, LeavesTheOldFileAndNothingElseOnError) {
  const TempFolder folder;
  folder.write("f", "old");
  const float data[6] = {};
  ConstTensorView strided(data, DType::f32, {2, 2});
  strided.strides = {3, 1};
  const ConstTensorView good(data, DType::f32, {6});
  const auto refuse = [&](std::initializer_list<std::string> words, const std::vector<NamedTensor>& tensors,
                          const std::map<std::string, std::string>& metadata = {}) {
    expect_error(ErrorKind::invalid_argument, words, [&] { write_safetensors(folder.path("f"), tensors, metadata); });
    EXPECT_EQ(read_file(folder.path("f")), "old");
    EXPECT_EQ(folder.num_files(), 1U);
  };
  refuse({"\"a\"", "contiguous"}, {{"a", strided}});
  refuse({"\"a\"", "given twice"}, {{"a", good}, {"a", good}});
  refuse({"reserved"}, {{"__metadata__", good}});
  refuse({"\"a\"", "null data"}, {{"a", ConstTensorView(nullptr, DType::f32, {1})}});
  refuse({"\"a\"", "whole bytes"}, {{"a", ConstTensorView(data, DType::fp4_e2m1, {3})}});
  refuse({"UTF-8"}, {{"\xff", good}});
  refuse({"UTF-8"}, {{"a", good}}, {{"k", "\xff"}});
}

TEST(WriteSafetensors, ReplacesTheOldFileAndKeepsReadersOfItAlive) {
  const TempFolder folder;
  const float first = 1;
  const float second = 2;
  write_safetensors(folder.path("f"), {{"a", ConstTensorView(&first, DType::f32, {1})}});
  const SafetensorsFile old(folder.path("f"));
  write_safetensors(folder.path("f"), {{"a", ConstTensorView(&second, DType::f32, {1})}});
  EXPECT_EQ(*old.get("a").as<float>(), 1.0F);
  EXPECT_EQ(*SafetensorsFile(folder.path("f")).get("a").as<float>(), 2.0F);
  EXPECT_EQ(folder.num_files(), 1U);
}

TEST(WriteSafetensors, ReportsAFolderThatIsNotThere) {
  const TempFolder folder;
  expect_error(ErrorKind::io, {"no/f", "No such file"}, [&] { write_safetensors(folder.path("no/f"), {}); });
}

TEST(WriteSafetensors, RemovesItsUnfinishedFileWhenTheRenameFails) {
  const TempFolder folder;
  std::filesystem::create_directories(folder.path("f/inside"));
  expect_error(ErrorKind::io, {"cannot rename"}, [&] { write_safetensors(folder.path("f"), {}); });
  EXPECT_EQ(folder.num_files(), 1U);
}

}  // namespace
}  // namespace conclave::test
