// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Folders and files for tests: a folder that removes itself, raw safetensors bytes, and what an Error must say.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "conclave/error.hpp"

namespace conclave::test {

class TempFolder {
 public:
  TempFolder() {
    static std::atomic<int> count{0};
    std::string name = "conclave_io_";
    name.append(std::to_string(getpid())).append("_").append(std::to_string(count++));
    path_ = std::filesystem::temp_directory_path() / name;
    std::filesystem::create_directories(path_);
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string path(std::string_view name = "") const { return name.empty() ? path_.string() : (path_ / name).string(); }
  std::string write(std::string_view name, std::string_view text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }
  std::size_t num_files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(path_), {}));
  }

 private:
  std::filesystem::path path_;
};

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Length, header and data as a safetensors file has them; nothing is checked.
inline std::string raw_safetensors(std::string_view header, std::string_view data = "") {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(header.size() >> 8 * i);
  return out.append(header).append(data);
}

inline std::span<const std::byte> bytes_of_text(const std::string& text) {
  return std::as_bytes(std::span(text));
}

/// Runs `call`, which must throw an Error of `kind` whose message is one line and contains every word.
template <class Call>
void expect_error(ErrorKind kind, std::initializer_list<std::string> words, Call call) {
  try {
    call();
    ADD_FAILURE() << "no error, expected one that says " << *words.begin();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    for (const std::string& word : words) EXPECT_THAT(std::string(error.what()), ::testing::HasSubstr(word));
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
  }
}

}  // namespace conclave::test
