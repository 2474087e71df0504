// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: --mutations N and files or folders. Runs the fuzz target on every file and on N mutations of it, the same ones
// every time: a short run of each parser under attack wherever there is no libFuzzer, and the way to repeat a finding.
// Out: exit status 0 and the number of inputs, or a crash.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::uint8_t>;

Bytes read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Bytes that mean something to the formats at hand, more likely to get past the first check than random ones.
constexpr std::uint8_t kTelling[] = {0,   1,   0x7f, 0x80, 0xff, '"', '{', '}', '[',
                                     ']', ',', ':',  '-',  '0',  '9', 'e', '.'};

/// A handful of edits: overwrite, insert, erase, repeat a stretch, cut off.
Bytes mutated(Bytes bytes, std::mt19937& random) {
  const auto below = [&](std::size_t n) { return n == 0 ? 0 : static_cast<std::size_t>(random() % n); };
  for (std::size_t edits = 1 + below(4); edits > 0; --edits) {
    const auto at = static_cast<std::ptrdiff_t>(below(bytes.size()));
    const std::uint8_t value =
        below(4) == 0 ? static_cast<std::uint8_t>(random()) : kTelling[below(std::size(kTelling))];
    const auto length =
        static_cast<std::ptrdiff_t>(below(std::min<std::size_t>(bytes.size() - static_cast<std::size_t>(at), 64)));
    switch (below(5)) {
      case 0:
        if (!bytes.empty()) bytes[static_cast<std::size_t>(at)] = value;
        break;
      case 1:
        bytes.insert(bytes.begin() + at, value);
        break;
      case 2:
        bytes.erase(bytes.begin() + at, bytes.begin() + at + length);
        break;
      case 3: {
        const Bytes piece(bytes.begin() + at, bytes.begin() + at + length);
        bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(below(bytes.size())), piece.begin(), piece.end());
        break;
      }
      default:
        if (below(8) == 0) bytes.resize(static_cast<std::size_t>(at));
    }
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<fs::path> files;
  long mutations = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--mutations" && i + 1 < argc) {
      mutations = std::atol(argv[++i]);
    } else if (fs::is_directory(argument)) {
      for (const auto& entry : fs::recursive_directory_iterator(argument))
        if (entry.is_regular_file()) files.push_back(entry.path());
    } else {
      files.emplace_back(argument);
    }
  }
  if (files.empty()) {
    std::fprintf(stderr, "usage: %s [--mutations N] FILE|FOLDER...\n", argv[0]);
    return 2;
  }
  std::mt19937 random(20260731);
  long count = 0;
  for (const fs::path& file : files) {
    const Bytes bytes = read(file);
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
    for (long i = 0; i < mutations; ++i) {
      const Bytes changed = mutated(bytes, random);
      LLVMFuzzerTestOneInput(changed.data(), changed.size());
    }
    count += 1 + mutations;
  }
  std::printf("%ld inputs\n", count);
  return 0;
}
