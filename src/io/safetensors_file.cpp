// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// A checked header and a mapping -> views. Where the data of a tensor is not aligned to its element (a writer that did
// not pad the header), that tensor is copied, so that every view that leaves here is safe to read as its element type.
#include <cstring>

#include "base/error.hpp"
#include "conclave/safetensors.hpp"
#include "io/json_text.hpp"
#include "io/mapped_file.hpp"
#include "io/safetensors_header.hpp"

namespace conclave {
namespace {

/// What views point into: the file's bytes, and the copies of tensors that lay unaligned.
struct Owner {
  std::shared_ptr<const void> file;
  std::vector<std::shared_ptr<Storage>> copies;
};

bool is_aligned(const std::byte* data, DType dtype) noexcept {
  const auto element = static_cast<std::uintptr_t>(bits_of(dtype) >= 8 ? bits_of(dtype) / 8 : 1);
  return reinterpret_cast<std::uintptr_t>(data) % element == 0;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path) {
  const auto file = std::make_shared<MappedFile>(path);
  mapping_ = file;
  bytes_ = file->bytes();
  parse(bytes_);
}

SafetensorsFile SafetensorsFile::from_bytes(std::span<const std::byte> bytes, const std::string& name) {
  SafetensorsFile file;
  file.path_ = name;
  const auto copy = std::make_shared<Storage>(static_cast<std::int64_t>(bytes.size()));
  if (!bytes.empty()) std::memcpy(copy->data(), bytes.data(), bytes.size());
  file.mapping_ = copy;
  // bytes_ stays empty: pages of memory that no file backs cannot be given up and read again.
  file.parse({copy->data(), bytes.size()});
  return file;
}

void SafetensorsFile::parse(std::span<const std::byte> bytes) {
  const SafetensorsHeader header = parse_safetensors_header(bytes, path_);
  std::vector<std::shared_ptr<Storage>> copies;
  for (const HeaderEntry& e : header.entries) {
    const std::byte* data = bytes.data() + header.data_start + e.begin;
    if (e.end > e.begin && !is_aligned(data, e.dtype)) {
      copies.push_back(std::make_shared<Storage>(e.end - e.begin));
      std::memcpy(copies.back()->data(), data, static_cast<std::size_t>(e.end - e.begin));
      give_up(data, e.end - e.begin);
      data = copies.back()->data();
    }
    index_.emplace(e.name, tensors_.size());
    tensors_.push_back({e.name, ConstTensorView(data, e.dtype, e.shape)});
  }
  metadata_ = header.metadata;
  if (!copies.empty()) mapping_ = std::make_shared<Owner>(Owner{mapping_, std::move(copies)});
}

const ConstTensorView* SafetensorsFile::find(std::string_view name) const noexcept {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second].view;
}

const ConstTensorView& SafetensorsFile::get(std::string_view name) const {
  const ConstTensorView* view = find(name);
  if (view == nullptr) fail(ErrorKind::bad_file, "{}: no tensor {}", path_, in_quotes(name));
  return *view;
}

void SafetensorsFile::give_up(const void* begin, std::int64_t bytes) const noexcept {
  const auto* first = static_cast<const std::byte*>(begin);
  if (bytes <= 0 || bytes_.empty() || std::less<>()(first, bytes_.data()) ||
      std::less<>()(bytes_.data() + bytes_.size(), first + bytes))
    return;
  release_mapped_pages(begin, bytes);
}

}  // namespace conclave
