// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// One file or shards, and everything that an index can get wrong.
#include "io/tensor_store.hpp"

#include <gtest/gtest.h>

#include "io/model_copy.hpp"

namespace conclave::test {
namespace {

constexpr const char* kFirst = "model-00001-of-00002.safetensors";
constexpr const char* kSecond = "model-00002-of-00002.safetensors";

TEST(TensorStore, FindsTheSameTensorsInOneFileAndInShards) {
  const ModelCopy whole("mixtral");
  whole.write();
  const ModelCopy shards("mixtral");
  shards.write_shards();
  const TensorStore a(whole.folder.path());
  const TensorStore b(shards.folder.path());
  ASSERT_EQ(a.tensors().size(), whole.tensors.size());
  ASSERT_EQ(b.tensors().size(), whole.tensors.size());
  for (const auto& [name, tensor] : a.tensors()) {
    const StoredTensor* other = b.find(name);
    ASSERT_NE(other, nullptr) << name;
    EXPECT_EQ(std::memcmp(other->view.data, tensor.view.data, static_cast<std::size_t>(tensor.view.bytes())), 0);
  }
  EXPECT_EQ(b.files().size(), 2U);
}

TEST(TensorStore, PrefersTheOneFileWhereBothAreThere) {
  const ModelCopy model("mixtral");
  model.write_shards();
  model.write();
  EXPECT_EQ(TensorStore(model.folder.path()).files().size(), 1U);
}

TEST(TensorStore, NamesAnEmptyFolderAndOneThatIsNotThere) {
  const TempFolder folder;
  expect_error(ErrorKind::io, {folder.path(), "neither model.safetensors"}, [&] { TensorStore(folder.path()); });
  expect_error(ErrorKind::io, {"/no/such", "neither"}, [&] { TensorStore("/no/such"); });
}

TEST(TensorStore, RefusesAMissingAndATruncatedShard) {
  const ModelCopy model("mixtral");
  model.write_shards();
  const std::string bytes = read_file(model.folder.path(kSecond));
  model.folder.write(kSecond, bytes.substr(0, bytes.size() - 100));
  expect_error(ErrorKind::bad_file, {kSecond, "tensor \"model.layers", "truncated"},
               [&] { TensorStore(model.folder.path()); });
  std::filesystem::remove(model.folder.path(kSecond));
  expect_error(ErrorKind::bad_file, {"index.json", kSecond, "missing"}, [&] { TensorStore(model.folder.path()); });
}

TEST(TensorStore, RefusesATensorThatTheIndexNamesAndNoShardHas) {
  const ModelCopy model("mixtral");
  model.write_shards([](nlohmann::json& map) { map["model.norm.weight"] = kFirst; });
  expect_error(ErrorKind::bad_file, {kFirst, "\"model.norm.weight\" is missing", "index.json"},
               [&] { TensorStore(model.folder.path()); });
}

TEST(TensorStore, RefusesATensorInAnotherShardThanTheIndexSays) {
  const ModelCopy model("mixtral");
  const std::string name = model.tensors[0].name;
  model.write_shards([&](nlohmann::json& map) { map[name] = kSecond; });
  expect_error(ErrorKind::bad_file, {kSecond, name, "missing"}, [&] { TensorStore(model.folder.path()); });
}

TEST(TensorStore, RefusesATensorInTwoShards) {
  ModelCopy model("mixtral");
  const std::string name = model.tensors[0].name;
  model.write_shards();
  write_safetensors(model.folder.path("third.safetensors"), {model.tensors[0]});
  std::string index = read_file(model.folder.path("model.safetensors.index.json"));
  nlohmann::json json = nlohmann::json::parse(index);
  json["weight_map"][name] = "third.safetensors";
  model.folder.write("model.safetensors.index.json", json.dump());
  expect_error(ErrorKind::bad_file, {name, "is also in", "third.safetensors"},
               [&] { TensorStore(model.folder.path()); });
}

TEST(TensorStore, RefusesPathsThatLeaveTheFolder) {
  for (const char* path : {"../other.safetensors", "/etc/passwd", "a/../../b", "", "a\\b", ".."}) {
    const ModelCopy model("mixtral");
    model.write_shards([&](nlohmann::json& map) { map["x"] = path; });
    expect_error(ErrorKind::bad_file, {"index.json", "tensor \"x\"", "inside the folder"},
                 [&] { TensorStore(model.folder.path()); });
  }
}

TEST(TensorStore, RefusesWhatIsNotAnIndex) {
  const TempFolder folder;
  for (const auto& [text, words] :
       std::vector<std::pair<std::string, std::string>>{{"[]", "no object \"weight_map\""},
                                                        {"{}", "no object \"weight_map\""},
                                                        {R"({"weight_map": []})", "no object \"weight_map\""},
                                                        {R"({"weight_map": {"x": 1}})", "given 1, expected a string"},
                                                        {R"({"weight_map": {"x": "f", "x": "g"}})", "occurs twice"},
                                                        {R"({"weight_map")", "not JSON"}}) {
    folder.write("model.safetensors.index.json", text);
    expect_error(ErrorKind::bad_file, {"model.safetensors.index.json", words}, [&] { TensorStore(folder.path()); });
  }
}

}  // namespace
}  // namespace conclave::test
