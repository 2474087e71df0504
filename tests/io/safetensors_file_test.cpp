// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Mapping, look-up, alignment of what is handed out.
#include <gtest/gtest.h>

#include <cstring>

#include "conclave/safetensors.hpp"
#include "io/files.hpp"

namespace conclave::test {
namespace {

const char* kTwo =
    R"({"x":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"y":{"dtype":"F32","shape":[2],"data_offsets":[3,11]}})";

std::string two_tensors(std::size_t padding) {
  const float y[2] = {1.5F, -2.0F};
  std::string data = "abc";
  data.append(reinterpret_cast<const char*>(y), sizeof y);
  return raw_safetensors(std::string(kTwo).append(padding, ' '), data);
}

TEST(SafetensorsFile, EveryViewIsAlignedWhateverTheHeaderLength) {
  const TempFolder folder;
  for (std::size_t padding = 0; padding < 8; ++padding) {
    const std::string path = folder.write(std::to_string(padding), two_tensors(padding));
    for (const SafetensorsFile& file :
         {SafetensorsFile(path), SafetensorsFile::from_bytes(bytes_of_text(two_tensors(padding)), "memory")}) {
      const ConstTensorView& y = file.get("y");
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(y.data) % sizeof(float), 0U);
      EXPECT_EQ(y.as<float>()[0], 1.5F);
      EXPECT_EQ(y.as<float>()[1], -2.0F);
      EXPECT_EQ(std::memcmp(file.get("x").data, "abc", 3), 0);
    }
  }
}

TEST(SafetensorsFile, ViewsOutliveTheFileWhileTheMappingIsHeld) {
  const TempFolder folder;
  std::shared_ptr<const void> mapping;
  ConstTensorView y;
  {
    const SafetensorsFile file(folder.write("t", two_tensors(1)));
    mapping = file.mapping();
    y = file.get("y");
  }
  EXPECT_EQ(y.as<float>()[1], -2.0F);
}

TEST(SafetensorsFile, BytesThatWereGivenUpCanBeReadAgain) {
  const TempFolder folder;
  const std::string data(1 << 20, 'q');
  const std::string header = R"({"x":{"dtype":"U8","shape":[1048576],"data_offsets":[0,1048576]}})";
  for (const SafetensorsFile& file :
       {SafetensorsFile(folder.write("t", raw_safetensors(header, data))),
        SafetensorsFile::from_bytes(bytes_of_text(raw_safetensors(header, data)), "memory")}) {
    const ConstTensorView& x = file.get("x");
    file.give_up(x.data, x.bytes());
    EXPECT_EQ(std::memcmp(x.data, data.data(), data.size()), 0);
    char elsewhere[8192] = "kept";
    file.give_up(elsewhere, sizeof elsewhere);
    EXPECT_STREQ(elsewhere, "kept");
  }
}

TEST(SafetensorsFile, NamesWhatIsMissing) {
  const TempFolder folder;
  expect_error(ErrorKind::io, {folder.path("no"), "No such file"}, [&] { SafetensorsFile(folder.path("no")); });
  expect_error(ErrorKind::io, {folder.path(), "not a regular file"}, [&] { SafetensorsFile(folder.path()); });
  expect_error(ErrorKind::bad_file, {"empty", "0 bytes"}, [&] { SafetensorsFile(folder.write("empty", "")); });
  const SafetensorsFile file(folder.write("t", two_tensors(0)));
  EXPECT_EQ(file.find("z"), nullptr);
  expect_error(ErrorKind::bad_file, {file.path(), "no tensor \"z\""}, [&] { (void)file.get("z"); });
}

TEST(SafetensorsFile, MissingFileIsAnIoErrorWithTheReason) {
  expect_error(ErrorKind::io, {"/no/such/folder/f", "cannot open"}, [] { SafetensorsFile("/no/such/folder/f"); });
}

}  // namespace
}  // namespace conclave::test
