// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// A reader that never steps over the end, and two loops: keys, tensors.
#include "io/gguf_header.hpp"

#include <bit>
#include <cstring>
#include <set>

#include "base/error.hpp"
#include "io/json_text.hpp"

namespace conclave {
namespace {

using nlohmann::json;

constexpr std::int64_t kMaxArrayValues = 10'000;
/// Of the format's reference implementation.
constexpr std::uint32_t kMaxRankInFile = 4;
constexpr int kMaxNesting = 4;

/// Numbers of value types, as in the specification.
enum Type : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, text, array, u64, i64, f64 };

class HeaderReader {
 public:
  HeaderReader(std::span<const std::byte> file, const std::string& path) : file_(file), path_(path) {}

  std::int64_t position() const { return at_; }

  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)), sizeof(T));
    return value;
  }

  std::string string() {
    const auto length = number<std::uint64_t>();
    const std::byte* bytes = take(length);
    return {reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(length)};
  }

  /// A value of a type; null for an array that is skipped.
  json value(std::uint32_t type, int depth = 0) {
    switch (type) {
      case u8:
        return number<std::uint8_t>();
      case i8:
        return number<std::int8_t>();
      case u16:
        return number<std::uint16_t>();
      case i16:
        return number<std::int16_t>();
      case u32:
        return number<std::uint32_t>();
      case i32:
        return number<std::int32_t>();
      case f32:
        return static_cast<double>(number<float>());
      case boolean:
        return number<std::uint8_t>() != 0;
      case text:
        return string();
      case array:
        return array_value(depth);
      case u64:
        return number<std::uint64_t>();
      case i64:
        return number<std::int64_t>();
      case f64:
        return number<double>();
      default:
        fail(ErrorKind::bad_file, "{}: byte {}: value type {}, expected 0 to 12", path_, at_, type);
    }
  }

 private:
  const std::byte* take(std::uint64_t count) {
    const auto left = static_cast<std::uint64_t>(file_.size()) - static_cast<std::uint64_t>(at_);
    if (count > left)
      fail(ErrorKind::bad_file, "{}: byte {}: given {} bytes to the end of the file, expected {}", path_, at_, left,
           count);
    const std::byte* data = file_.data() + at_;
    at_ += static_cast<std::int64_t>(count);
    return data;
  }

  json array_value(int depth) {
    const auto type = number<std::uint32_t>();
    const auto count = number<std::uint64_t>();
    if (type == array && depth >= kMaxNesting)
      fail(ErrorKind::bad_file, "{}: byte {}: arrays in arrays, expected at most {}", path_, at_, kMaxNesting);
    const bool keep = type != text && type != array && count <= static_cast<std::uint64_t>(kMaxArrayValues);
    json values = json::array();
    // Every element takes a byte at least, so a wrong count ends at the end of the file.
    for (std::uint64_t i = 0; i < count; ++i) {
      json element = value(type, depth + 1);
      if (keep) values.push_back(std::move(element));
    }
    return keep ? values : json();
  }

  std::span<const std::byte> file_;
  const std::string& path_;
  std::int64_t at_ = 0;
};

void read_start(HeaderReader& from, const std::string& path) {
  constexpr std::uint32_t kMagic = 0x46554747;  // "GGUF"
  const auto magic = from.number<std::uint32_t>();
  if (magic != kMagic) fail(ErrorKind::bad_file, "{}: starts with {:#010x}, expected \"GGUF\"", path, magic);
  const auto version = from.number<std::uint32_t>();
  if (version != 3) fail(ErrorKind::bad_file, "{}: GGUF version {}, expected 3", path, version);
}

json read_metadata(HeaderReader& from, std::uint64_t count, const std::string& path) {
  json metadata = json::object();
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::string key = from.string();
    json value = from.value(from.number<std::uint32_t>());
    if (metadata.contains(key)) fail(ErrorKind::bad_file, "{}: key {} occurs twice", path, in_quotes(key));
    metadata[key] = std::move(value);
  }
  return metadata;
}

/// The bytes of `shape` in a type, or an Error.
std::int64_t bytes_of_entry(const GgufEntry& e, const GgufType& type, const std::string& where) {
  if (!e.shape.empty() && e.shape.back() % type.block != 0)
    fail(ErrorKind::bad_file, "{}: rows of {} elements in {}, expected a multiple of {}", where, e.shape.back(),
         type.name, type.block);
  std::int64_t bytes = type.block_bytes;
  std::int64_t blocks = 1;
  for (std::size_t d = 0; d < e.shape.size(); ++d) {
    const std::int64_t extent = d + 1 == e.shape.size() ? e.shape[d] / type.block : e.shape[d];
    if (__builtin_mul_overflow(blocks, extent, &blocks))
      fail(ErrorKind::bad_file, "{}: more elements than 2^63", where);
  }
  if (__builtin_mul_overflow(blocks, bytes, &bytes)) fail(ErrorKind::bad_file, "{}: more bytes than 2^63", where);
  return bytes;
}

GgufEntry read_entry(HeaderReader& from, std::int64_t alignment, const std::string& path) {
  GgufEntry e;
  e.name = from.string();
  const std::string where = fmt::format("{}: tensor {}", path, in_quotes(e.name));
  const auto rank = from.number<std::uint32_t>();
  if (rank > kMaxRankInFile) fail(ErrorKind::bad_file, "{}: rank {}, expected at most {}", where, rank, kMaxRankInFile);
  for (std::uint32_t d = 0; d < rank; ++d) {
    const auto extent = from.number<std::uint64_t>();
    if (extent > static_cast<std::uint64_t>(INT64_MAX))
      fail(ErrorKind::bad_file, "{}: extent {}, expected less than 2^63", where, extent);
    e.shape.insert(e.shape.begin(), static_cast<std::int64_t>(extent));
  }
  e.type = from.number<std::uint32_t>();
  const auto offset = from.number<std::uint64_t>();
  if (offset > static_cast<std::uint64_t>(INT64_MAX / 2) || offset % static_cast<std::uint64_t>(alignment) != 0)
    fail(ErrorKind::bad_file, "{}: offset {}, expected a multiple of {} inside the file", where, offset, alignment);
  e.begin = static_cast<std::int64_t>(offset);
  if (const GgufType* type = gguf_type(e.type)) e.bytes = bytes_of_entry(e, *type, where);
  return e;
}

std::int64_t alignment_of(const json& metadata, const std::string& path) {
  const auto found = metadata.find("general.alignment");
  if (found == metadata.end()) return 32;
  const std::int64_t alignment = json_integer(*found, path + ": \"general.alignment\"");
  if (alignment < 8 || alignment > 1 << 20 || !std::has_single_bit(static_cast<std::uint64_t>(alignment)))
    fail(ErrorKind::bad_file, "{}: \"general.alignment\": given {}, expected a power of two from 8", path, alignment);
  return alignment;
}

}  // namespace

GgufHeader parse_gguf_header(std::span<const std::byte> file, const std::string& path) {
  HeaderReader from(file, path);
  read_start(from, path);
  const auto num_tensors = from.number<std::uint64_t>();
  const auto num_keys = from.number<std::uint64_t>();
  GgufHeader header;
  header.metadata = read_metadata(from, num_keys, path);
  const std::int64_t alignment = alignment_of(header.metadata, path);
  std::set<std::string> names;
  for (std::uint64_t i = 0; i < num_tensors; ++i) {
    header.tensors.push_back(read_entry(from, alignment, path));
    const std::string& name = header.tensors.back().name;
    if (!names.insert(name).second) fail(ErrorKind::bad_file, "{}: tensor {} occurs twice", path, in_quotes(name));
  }
  const std::int64_t data = (from.position() + alignment - 1) / alignment * alignment;
  const auto size = static_cast<std::int64_t>(file.size());
  for (GgufEntry& e : header.tensors) {
    e.begin += data;
    if (e.begin > size || e.bytes > size - e.begin)
      fail(ErrorKind::bad_file, "{}: tensor {}: {} bytes at byte {}, but the file ends at byte {}", path,
           in_quotes(e.name), e.bytes, e.begin, size);
  }
  return header;
}

}  // namespace conclave
