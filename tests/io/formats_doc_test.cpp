// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The examples of docs/formats.md: settings and bytes, read by the format, give the numbers that the page says.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <sstream>

#include "io/files.hpp"
#include "io/formats/list.hpp"
#include "io/safetensors_header.hpp"

namespace conclave::test {
namespace {

class PageFile final : public TensorFile {
 public:
  const std::string& path() const noexcept override { return path_; }
  void give_up(const void*, std::int64_t) const noexcept override {}

 private:
  std::string path_ = "formats.md";
};

/// "[1, 4]" from a stream.
std::vector<std::int64_t> read_shape(std::istream& in) {
  std::vector<std::int64_t> shape;
  std::string text;
  std::getline(in, text, ']');
  for (char& c : text)
    if (c == '[' || c == ',') c = ' ';
  std::istringstream numbers(text);
  for (std::int64_t extent = 0; numbers >> extent;) shape.push_back(extent);
  return shape;
}

/// The words to the end of the line, "x*3" three times.
std::vector<std::string> read_words(std::istream& in) {
  std::vector<std::string> words;
  for (std::string word; in >> word;) {
    const std::size_t star = word.find('*');
    const int times = star == std::string::npos ? 1 : std::stoi(word.substr(star + 1));
    words.insert(words.end(), static_cast<std::size_t>(times), word.substr(0, star));
  }
  return words;
}

struct Example {
  std::string settings;
  std::map<std::string, Tensor> tensors;
  std::vector<std::int64_t> shape;
  std::vector<std::string> numbers;
};

Tensor tensor_of(const std::string& dtype, const std::vector<std::int64_t>& shape,
                 const std::vector<std::string>& bytes) {
  const Tensor t(dtype_from_safetensors_code(dtype).value(), std::span<const std::int64_t>(shape));
  EXPECT_EQ(static_cast<std::size_t>(t.view().bytes()), bytes.size());
  for (std::size_t i = 0; i < bytes.size(); ++i)
    t.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(std::stoi(bytes[i], nullptr, 16));
  return t;
}

std::vector<Example> examples() {
  std::vector<Example> all;
  std::istringstream page(read_file(CONCLAVE_SOURCE_DIR "/docs/formats.md"));
  bool inside = false;
  for (std::string line; std::getline(page, line);) {
    if (line == "```format") {
      inside = true;
      all.emplace_back();
      continue;
    }
    if (line.starts_with("```")) inside = false;
    if (!inside) continue;
    std::istringstream in(line);
    std::string word;
    in >> word;
    if (word == "settings") {
      std::getline(in, all.back().settings);
    } else if (word == "numbers") {
      all.back().shape = read_shape(in);
      all.back().numbers = read_words(in);
    } else {
      std::string dtype;
      in >> dtype;
      const std::vector<std::int64_t> shape = read_shape(in);
      all.back().tensors[word] = tensor_of(dtype, shape, read_words(in));
    }
  }
  return all;
}

std::shared_ptr<const WeightFormat> format_of(const Example& example) {
  nlohmann::json settings = nlohmann::json::parse(example.settings);
  if (settings.contains("gguf")) return formats::gguf_blocks(settings["gguf"].get<std::string>());
  settings["model_type"] = "any";
  return open_weight_format(ModelConfig(settings.dump(), "formats.md"));
}

/// The tensors of the example in the order of the format's list; all of them must be in it.
StoredProjection projection_of(const Example& example, const std::shared_ptr<const WeightFormat>& format,
                               const TensorFile& file) {
  StoredProjection p{format, example.shape.at(0), example.shape.at(1), 0, {}, {}};
  std::size_t found = 0;
  for (const TensorSpec& spec : format->tensors(p.rows, p.cols)) {
    p.names.push_back("p" + std::string(spec.suffixes[0]));
    p.tensors.emplace_back();
    for (std::string_view suffix : spec.suffixes) {
      const auto tensor = example.tensors.find("p" + std::string(suffix));
      if (suffix.empty() || tensor == example.tensors.end()) continue;
      p.tensors.back() = {&file, tensor->second};
      ++found;
    }
    EXPECT_TRUE(p.tensors.back().file != nullptr || spec.optional) << p.names.back();
  }
  EXPECT_EQ(found, example.tensors.size());
  return p;
}

TEST(FormatsPage, EveryExampleIsReadAsThePageSays) {
  const PageFile file;
  std::map<std::string, int> formats;
  for (const Example& example : examples()) {
    SCOPED_TRACE(example.settings);
    const auto format = format_of(example);
    ASSERT_NE(format, nullptr);
    ++formats[format->name()];
    const StoredProjection p = projection_of(example, format, file);
    const Tensor out(DType::f32, {p.rows, p.cols});
    format->decode(p, out);
    ASSERT_EQ(example.numbers.size(), static_cast<std::size_t>(p.rows * p.cols));
    for (std::size_t i = 0; i < example.numbers.size(); ++i) {
      EXPECT_EQ(out.as<float>()[i], std::stof(example.numbers[i])) << "number " << i;
      EXPECT_EQ(std::signbit(out.as<float>()[i]) && out.as<float>()[i] == 0, example.numbers[i] == "-0") << i;
    }
  }
  EXPECT_EQ(formats.size(), 16U);
}

}  // namespace
}  // namespace conclave::test
