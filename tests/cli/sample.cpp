// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Copies through the public reader and writer.
#include "cli/sample.hpp"

#include <cstring>

namespace conclave {

std::string sample_folder() {
  return CONCLAVE_SOURCE_DIR "/data/tiny-moe";
}
std::string sample_io() {
  return sample_folder() + "/io.safetensors";
}

void copy_altered(const std::string& from, const std::string& to,
                  const std::function<bool(const NamedTensor& tensor, std::span<std::byte> bytes)>& change) {
  const SafetensorsFile file(from);
  std::vector<Tensor> copies;
  std::vector<NamedTensor> kept;
  for (const NamedTensor& tensor : file.tensors()) {
    const ConstTensorView& v = tensor.view;
    copies.emplace_back(v.dtype, std::span<const std::int64_t>(v.shape.data(), static_cast<std::size_t>(v.rank)));
    const TensorView copy = copies.back();
    const auto size = static_cast<std::size_t>(v.bytes());
    if (size > 0) std::memcpy(copy.data, v.data, size);
    if (change(tensor, {static_cast<std::byte*>(copy.data), size})) kept.push_back({tensor.name, copy});
  }
  write_safetensors(to, kept, file.metadata());
}

void copy_with_problem(const std::string& from, const std::string& to,
                       const std::function<std::string(const std::string& problem)>& change) {
  const SafetensorsFile file(from);
  auto metadata = file.metadata();
  metadata["problem"] = change(metadata.at("problem"));
  write_safetensors(to, file.tensors(), metadata);
}

}  // namespace conclave
