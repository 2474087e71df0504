// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Length, JSON, entries, then the layout of the data as a whole.
#include "io/safetensors_header.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "conclave/tensor.hpp"
#include "io/json_text.hpp"

namespace conclave {
namespace {

using nlohmann::json;

constexpr std::int64_t kLengthBytes = 8;

std::int64_t header_length(std::span<const std::byte> file, const std::string& path) {
  const auto size = static_cast<std::int64_t>(file.size());
  if (size < kLengthBytes)
    fail(ErrorKind::bad_file, "{}: given {} bytes, expected at least 8 (the length of the header)", path, size);
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<std::uint64_t>(file[static_cast<std::size_t>(i)]);
  if (length > static_cast<std::uint64_t>(kMaxHeaderBytes))
    fail(ErrorKind::bad_file, "{}: header length {}, expected at most {}", path, length, kMaxHeaderBytes);
  if (static_cast<std::int64_t>(length) > size - kLengthBytes)
    fail(ErrorKind::bad_file, "{}: header length {}, expected at most {} (the file has {} bytes)", path, length,
         size - kLengthBytes, size);
  return static_cast<std::int64_t>(length);
}

const json& member(const json& entry, const char* key, const std::string& where) {
  const auto found = entry.find(key);
  if (found == entry.end())
    fail(ErrorKind::bad_file, "{}: no \"{}\", expected dtype, shape and data_offsets", where, key);
  return *found;
}

DType read_dtype(const json& entry, const std::string& where) {
  const std::string& code = json_string(member(entry, "dtype", where), where + ": dtype");
  const std::optional<DType> dtype = dtype_from_safetensors_code(code);
  if (!dtype) fail(ErrorKind::bad_file, "{}: dtype {}, expected a code such as F32 or BF16", where, in_quotes(code));
  return *dtype;
}

std::int64_t read_size(const json& value, const std::string& where) {
  const std::int64_t size = json_integer(value, where);
  if (size < 0) fail(ErrorKind::bad_file, "{}: given {}, expected 0 or more", where, size);
  return size;
}

std::vector<std::int64_t> read_shape(const json& entry, const std::string& where) {
  const json& shape = member(entry, "shape", where);
  if (!shape.is_array()) fail(ErrorKind::bad_file, "{}: shape {}, expected an array", where, shown(shape));
  if (shape.size() > static_cast<std::size_t>(kMaxRank))
    fail(ErrorKind::bad_file, "{}: rank {}, expected at most {}", where, shape.size(), kMaxRank);
  std::vector<std::int64_t> dims;
  for (const json& extent : shape) dims.push_back(read_size(extent, where + ": shape"));
  return dims;
}

/// Bits of all elements; refuses products that no file can hold.
std::int64_t bits_of_tensor(const HeaderEntry& e, const std::string& where) {
  std::int64_t bits = bits_of(e.dtype);
  bool overflow = false;
  for (std::int64_t extent : e.shape) overflow = overflow || __builtin_mul_overflow(bits, extent, &bits);
  // A zero extent after an overflow would make the product legal again, but not every reader computes it that way.
  if (overflow) fail(ErrorKind::bad_file, "{}: shape overflows 64-bit sizes", where);
  if (bits % 8 != 0) fail(ErrorKind::bad_file, "{}: {} bits, expected a multiple of 8", where, bits);
  return bits;
}

HeaderEntry read_entry(const std::string& name, const json& value, const std::string& where) {
  if (!value.is_object()) fail(ErrorKind::bad_file, "{}: given {}, expected an object", where, shown(value));
  for (const auto& [key, _] : value.items())
    if (key != "dtype" && key != "shape" && key != "data_offsets")
      fail(ErrorKind::bad_file, "{}: unknown key {}, expected dtype, shape and data_offsets", where, in_quotes(key));
  HeaderEntry e{name, read_dtype(value, where), read_shape(value, where)};
  const json& offsets = member(value, "data_offsets", where);
  if (!offsets.is_array() || offsets.size() != 2)
    fail(ErrorKind::bad_file, "{}: data_offsets {}, expected [begin, end]", where, shown(offsets));
  e.begin = read_size(offsets[0], where + ": data_offsets");
  e.end = read_size(offsets[1], where + ": data_offsets");
  if (e.end < e.begin)
    fail(ErrorKind::bad_file, "{}: data_offsets [{}, {}], expected begin <= end", where, e.begin, e.end);
  const std::int64_t bytes = bits_of_tensor(e, where) / 8;
  if (e.end - e.begin != bytes)
    fail(ErrorKind::bad_file, "{}: {} bytes at data_offsets [{}, {}], expected {} for its dtype and shape", where,
         e.end - e.begin, e.begin, e.end, bytes);
  return e;
}

void read_metadata(const json& value, const std::string& path, std::map<std::string, std::string>& metadata) {
  const std::string where = path + ": __metadata__";
  if (!value.is_object()) fail(ErrorKind::bad_file, "{}: given {}, expected an object", where, shown(value));
  for (const auto& [key, text] : value.items()) metadata[key] = json_string(text, where + ": " + in_quotes(key));
}

/// The data must be the tensors, one after another, and nothing else.
void check_layout(const std::vector<HeaderEntry>& entries, std::int64_t data_bytes, const std::string& path) {
  std::int64_t covered = 0;
  for (const HeaderEntry& e : entries) {
    if (e.end > data_bytes)
      fail(ErrorKind::bad_file, "{}: tensor {}: data_offsets [{}, {}], expected an end of at most {} (truncated file?)",
           path, in_quotes(e.name), e.begin, e.end, data_bytes);
    if (e.begin < covered)
      fail(ErrorKind::bad_file, "{}: tensor {}: data_offsets [{}, {}] overlap the tensor before, expected begin {}",
           path, in_quotes(e.name), e.begin, e.end, covered);
    if (e.begin > covered)
      fail(ErrorKind::bad_file, "{}: tensor {}: data_offsets [{}, {}] leave a hole, expected begin {}", path,
           in_quotes(e.name), e.begin, e.end, covered);
    covered = e.end;
  }
  if (covered != data_bytes)
    fail(ErrorKind::bad_file, "{}: {} bytes of data, expected {} (the end of the last tensor)", path, data_bytes,
         covered);
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file, const std::string& path) {
  SafetensorsHeader header;
  const std::int64_t length = header_length(file, path);
  header.data_start = kLengthBytes + length;
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes,
                              static_cast<std::size_t>(length));
  if (!text.starts_with('{')) fail(ErrorKind::bad_file, "{}: header does not start with '{{'", path);
  const json document = parse_json(text, path + ": header");
  for (const auto& [name, value] : document.items()) {
    if (name == "__metadata__")
      read_metadata(value, path, header.metadata);
    else
      header.entries.push_back(read_entry(name, value, fmt::format("{}: tensor {}", path, in_quotes(name))));
  }
  // Empty tensors sort before the tensor that begins where they do.
  std::sort(header.entries.begin(), header.entries.end(), [](const HeaderEntry& a, const HeaderEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  check_layout(header.entries, static_cast<std::int64_t>(file.size()) - header.data_start, path);
  return header;
}

}  // namespace conclave
