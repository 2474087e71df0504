// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// One file, or an index and its shards.
#include "io/tensor_store.hpp"

#include <filesystem>
#include <functional>
#include <set>

#include "base/error.hpp"
#include "io/json_text.hpp"
#include "io/mapped_file.hpp"

namespace conclave {
namespace {

namespace fs = std::filesystem;

/// A model of 10^6 tensors has an index of this order; anything larger is not an index.
constexpr std::int64_t kMaxIndexBytes = 256 << 20;

/// Only plain paths below the folder: an index is data from a stranger and must not name other files of this machine.
void check_shard_path(const std::string& shard, const std::string& where) {
  const fs::path path(shard);
  bool inside = !shard.empty() && path.is_relative() && shard.find('\0') == std::string::npos &&
                shard.find('\\') == std::string::npos;
  for (const fs::path& part : path) inside = inside && part != "..";
  if (!inside) fail(ErrorKind::bad_file, "{}: shard {}, expected a file inside the folder", where, in_quotes(shard));
}

/// tensor -> shard.
std::map<std::string, std::string> read_index(const std::string& path) {
  const nlohmann::json index = parse_json(read_text_file(path, kMaxIndexBytes), path);
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (map == index.end() || !map->is_object())
    fail(ErrorKind::bad_file, "{}: no object \"weight_map\", expected tensor names and their files", path);
  std::map<std::string, std::string> shards;
  for (const auto& [tensor, shard] : map->items()) {
    const std::string where = fmt::format("{}: tensor {}", path, in_quotes(tensor));
    check_shard_path(json_string(shard, where), where);
    shards[tensor] = shard.get<std::string>();
  }
  return shards;
}

class SafetensorsTensors final : public TensorFile {
 public:
  explicit SafetensorsTensors(const std::string& path) : file(path) {}
  const std::string& path() const noexcept override { return file.path(); }
  void give_up(const void* begin, std::int64_t bytes) const noexcept override { file.give_up(begin, bytes); }

  SafetensorsFile file;
};

class GgufTensors final : public TensorFile {
 public:
  GgufTensors(const std::string& path, std::unique_ptr<const MappedFile> mapped)
      : path_(path), mapped_(std::move(mapped)) {}
  const std::string& path() const noexcept override { return path_; }
  void give_up(const void* begin, std::int64_t bytes) const noexcept override {
    const auto all = mapped_->bytes();
    const auto* first = static_cast<const std::byte*>(begin);
    if (bytes <= 0 || std::less<>()(first, all.data()) || std::less<>()(all.data() + all.size(), first + bytes)) return;
    release_mapped_pages(begin, bytes);
  }

 private:
  std::string path_;
  std::unique_ptr<const MappedFile> mapped_;
};

/// Blocks are bytes: the last extent is that of a row. Types without a size have no data.
StoredTensor stored_tensor(const GgufEntry& e, const TensorFile* file, const std::byte* data) {
  const GgufType* type = gguf_type(e.type);
  StoredTensor t{file, {}};
  if (type == nullptr) {
    t.block_type = "of a type that this version does not know";
    return t;
  }
  std::vector<std::int64_t> shape = e.shape;
  if (!type->dtype) {
    t.block_type = type->name;
    if (!shape.empty()) shape.back() = shape.back() / type->block * type->block_bytes;
  }
  t.view = ConstTensorView(data + e.begin, type->dtype.value_or(DType::u8), shape);
  return t;
}

}  // namespace

TensorStore::TensorStore(const std::string& path, std::unique_ptr<const MappedFile> file, const GgufHeader& header)
    : path_(path) {
  const std::byte* data = file->bytes().data();
  files_.push_back(std::make_unique<const GgufTensors>(path, std::move(file)));
  for (const GgufEntry& e : header.tensors) tensors_.emplace(e.name, stored_tensor(e, files_.back().get(), data));
}

TensorStore::TensorStore(const std::string& folder) {
  const fs::path single = fs::path(folder) / "model.safetensors";
  const fs::path index = fs::path(folder) / "model.safetensors.index.json";
  std::error_code ignored;
  if (fs::exists(single, ignored)) {
    path_ = single.string();
    open_file(path_);
  } else if (fs::exists(index, ignored)) {
    path_ = index.string();
    open_shards(folder);
  } else {
    fail(ErrorKind::io, "{}: neither model.safetensors nor model.safetensors.index.json in this folder", folder);
  }
}

void TensorStore::open_shards(const std::string& folder) {
  const std::map<std::string, std::string> shards = read_index(path_);
  std::set<std::string> names;
  for (const auto& [_, shard] : shards) names.insert(shard);
  for (const std::string& name : names) {
    const std::string path = (fs::path(folder) / name).string();
    std::error_code ignored;
    if (!fs::exists(path, ignored)) fail(ErrorKind::bad_file, "{}: shard {} is missing", path_, in_quotes(name));
    open_file(path);
  }
  for (const auto& [tensor, shard] : shards) {
    const std::string path = (fs::path(folder) / shard).string();
    const StoredTensor* found = find(tensor);
    if (found == nullptr || found->file->path() != path)
      fail(ErrorKind::bad_file, "{}: tensor {} is missing, expected by {}", path, in_quotes(tensor), path_);
  }
}

void TensorStore::open_file(const std::string& path) {
  auto opened = std::make_unique<const SafetensorsTensors>(path);
  for (const NamedTensor& t : opened->file.tensors()) {
    const auto [entry, is_new] = tensors_.try_emplace(t.name, StoredTensor{opened.get(), t.view});
    if (!is_new)
      fail(ErrorKind::bad_file, "{}: tensor {} is also in {}, expected in one shard", path, in_quotes(t.name),
           entry->second.file->path());
  }
  files_.push_back(std::move(opened));
}

const StoredTensor* TensorStore::find(std::string_view name) const noexcept {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

}  // namespace conclave
