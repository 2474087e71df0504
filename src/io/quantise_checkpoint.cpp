// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// File by file: what is no routed expert is copied, the experts of a block are written where its first one was. One
// file's codes are in memory at a time.
#include "conclave/quantise_checkpoint.hpp"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "base/error.hpp"
#include "io/atomic_file.hpp"
#include "io/json_text.hpp"
#include "io/load_block.hpp"
#include "io/quantise_projection.hpp"
#include "io/source.hpp"
#include "io/written_settings.hpp"

namespace conclave {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// A folder beside the one that is wanted; gone again unless it took its place.
class NewFolder {
 public:
  explicit NewFolder(const std::string& path) : path_(fs::path(path).lexically_normal()) {
    if (path_.filename().empty()) path_ = path_.parent_path();
    std::error_code error;
    if (path.empty() || (fs::exists(path_, error) && !(fs::is_directory(path_, error) && fs::is_empty(path_, error))))
      fail(ErrorKind::io, "{}: exists, expected a new or an empty folder", path);
    temporary_ = path_;
    temporary_ += fmt::format(".{}.tmp", getpid());
    if (!fs::create_directory(temporary_, error))
      fail(ErrorKind::io, "{}: cannot create {}: {}", path, temporary_.string(),
           error ? error.message() : "it exists already");
  }
  ~NewFolder() {
    std::error_code ignored;
    if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  std::string operator/(const std::string& name) const { return (temporary_ / name).string(); }

  void commit() {
    std::error_code error;
    fs::rename(temporary_, path_, error);
    if (error) fail(ErrorKind::io, "{}: cannot rename {}: {}", path_.string(), temporary_.string(), error.message());
    temporary_.clear();
  }

 private:
  fs::path path_, temporary_;
};

std::string name_for(const std::string& pattern, std::int64_t expert) {
  std::string name = pattern;
  const std::size_t hole = name.find("{}");
  if (hole != std::string::npos) name.replace(hole, 2, std::to_string(expert));
  return name;
}

class Quantiser {
 public:
  Quantiser(const std::string& model, QuantKey key) : model_(model), key_(key), source_(open_source(model)) {
    if (source_.is_gguf)
      fail(ErrorKind::invalid_argument, "{}: given a GGUF file, expected a folder with config.json", model);
    if (source_.format != nullptr)
      fail(ErrorKind::bad_file, "{}: weights are stored as {}, expected f32, bf16 or f16", model,
           source_.format->name());
    names_ = source_.family.experts[0];
    if (names_->layout != ExpertLayout::each)
      fail(ErrorKind::invalid_argument,
           "{}: model_type {} keeps all experts in one tensor, expected one tensor for each expert and projection",
           model, source_.config.model_type());
    for (const BlockPlace& place : source_.places) add_block(place);
    settings_ = written_settings(key, modules_left_as_floats());
    json with_type = settings_;
    with_type["model_type"] = source_.config.model_type();
    format_ = open_weight_format(ModelConfig(with_type.dump(), model));
    result_.format = format_->name();
    result_.num_blocks = static_cast<std::int64_t>(source_.places.size());
  }

  QuantisedCheckpoint write(const std::string& output) {
    NewFolder folder(output);
    json map = json::object();
    std::int64_t total = 0;
    for (const auto& file : source_.store->files()) {
      const std::string name = fs::path(file->path()).lexically_relative(fs::path(model_) / "").string();
      if (name.find('/') != std::string::npos) fs::create_directories(fs::path(folder / name).parent_path());
      for (const NamedTensor& t : write_file(*file, folder / name)) {
        map[t.name] = name;
        total += t.view.bytes();
      }
    }
    if (source_.store->path().ends_with(".json"))
      write_text(folder / "model.safetensors.index.json",
                 json{{"metadata", {{"total_size", total}}}, {"weight_map", map}});
    write_config(folder);
    copy_side_files(folder);
    folder.commit();
    return result_;
  }

 private:
  struct Block {
    BlockPlace place;
    MoeConfig moe;
    BlockTensors tensors;
    const TensorFile* file = nullptr;  ///< Where it is written.
  };

  void add_block(const BlockPlace& place) {
    Block b;
    b.place = place;
    b.moe = moe_config_of(source_, place);
    b.tensors = resolve_block(source_.family, place, b.moe, *source_.store, nullptr);
    const ExpertNames& stored = *place.experts;
    for (std::int64_t e = 0; e < b.moe.num_weight_experts(); ++e)
      for (std::string_view pattern : {stored.gate, stored.up, stored.down}) {
        if (pattern.empty()) continue;
        const std::string name = place.prefix + name_for(std::string(pattern), e);
        const StoredTensor* tensor = source_.store->find(name);
        if (!replaced_.insert(name).second) continue;
        result_.bytes_before += tensor->view.bytes();
        if (b.file == nullptr) b.file = tensor->file;
      }
    blocks_.push_back(std::move(b));
  }

  /// Everything that a tool might take for a linear layer, and is not replaced.
  std::vector<std::string> modules_left_as_floats() const {
    constexpr std::string_view kEnd = ".weight";
    std::vector<std::string> modules;
    for (const auto& [name, tensor] : source_.store->tensors())
      if (name.ends_with(kEnd) && tensor.view.rank == 2 && !replaced_.contains(name))
        modules.push_back(name.substr(0, name.size() - kEnd.size()));
    return modules;
  }

  /// The tensors that were written; their data is gone.
  std::vector<NamedTensor> write_file(const TensorFile& file, const std::string& path) {
    std::vector<NamedTensor> tensors;
    std::vector<Tensor> owned;
    for (const auto& [name, tensor] : source_.store->tensors())
      if (tensor.file == &file && !replaced_.contains(name)) tensors.push_back({name, tensor.view});
    for (const Block& block : blocks_)
      if (block.file == &file) add_codes(block, tensors, owned);
    write_safetensors(path, tensors, {{"format", "pt"}});
    return tensors;
  }

  void add_codes(const Block& block, std::vector<NamedTensor>& tensors, std::vector<Tensor>& owned) {
    const LayerWeights weights = load_block(block.tensors, block.moe, source_.store);
    const bool gated = is_gated(block.moe.activation);
    const DType scale_dtype =
        key_ != QuantKey::fp8_block128 && block.tensors.dtype == DType::bf16 ? DType::bf16 : DType::f32;
    const auto add = [&](std::string_view pattern, std::int64_t e, const std::vector<WrittenTensor>& written) {
      const std::string name = name_for(std::string(pattern), e);
      for (const WrittenTensor& w : written) {
        owned.push_back(w.tensor);
        tensors.push_back({block.place.prefix + std::string(projection_name(name)) + w.suffix, owned.back()});
        result_.bytes_after += w.tensor.view().bytes();
      }
    };
    for (std::int64_t e = 0; e < block.moe.num_weight_experts(); ++e) {
      const auto first = quantise_projections(*format_, weights.experts.w13.at(e), gated ? 2 : 1, scale_dtype);
      if (gated) add(names_->gate, e, first[0]);
      add(names_->up, e, first.back());
      add(names_->down, e, quantise_projections(*format_, weights.experts.w2.at(e), 1, scale_dtype)[0]);
    }
  }

  static void write_text(const std::string& path, const json& document) {
    AtomicFile file(path);
    const std::string text = document.dump(2) + "\n";
    file.write(std::as_bytes(std::span(text)));
    file.commit();
  }

  void write_config(const NewFolder& folder) const {
    const std::string path = (fs::path(model_) / "config.json").string();
    json config = parse_json(without_non_finite(read_text_file(path, kMaxConfigBytes)), path);
    config["quantization_config"] = settings_;
    write_text(folder / "config.json", config);
  }

  /// What else makes a folder a model: tokenizer, templates, generation defaults.
  void copy_side_files(const NewFolder& folder) const {
    const std::set<std::string> endings = {".json", ".jinja", ".txt", ".model", ".tiktoken"};
    for (const fs::directory_entry& entry : fs::directory_iterator(model_)) {
      const std::string name = entry.path().filename().string();
      if (!entry.is_regular_file() || !endings.contains(entry.path().extension().string())) continue;
      if (name != "config.json" && name != "model.safetensors.index.json") fs::copy_file(entry.path(), folder / name);
    }
  }

  std::string model_;
  QuantKey key_;
  Source source_;
  const ExpertNames* names_ = nullptr;
  std::vector<Block> blocks_;
  std::set<std::string> replaced_;
  json settings_;
  std::shared_ptr<const WeightFormat> format_;
  QuantisedCheckpoint result_;
};

}  // namespace

QuantisedCheckpoint quantise_checkpoint(const std::string& model, QuantKey key, const std::string& output) {
  try {
    return Quantiser(model, key).write(output);
  } catch (const fs::filesystem_error& error) {
    fail(ErrorKind::io, "{}: {}", output, error.what());
  }
}

}  // namespace conclave
