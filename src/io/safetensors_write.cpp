// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Views -> a safetensors file. The header is padded so that the data starts at a multiple of 8, and tensors are written
// widest element first: without holes, which the format forbids, that is what aligns every one of them.
#include <algorithm>
#include <set>

#include "base/error.hpp"
#include "conclave/safetensors.hpp"
#include "io/atomic_file.hpp"
#include "io/json_text.hpp"
#include "io/safetensors_header.hpp"

namespace conclave {
namespace {

void check(const std::string& path, const std::vector<NamedTensor>& tensors) {
  std::set<std::string_view> names;
  for (const NamedTensor& t : tensors) {
    require(t.name != "__metadata__", "{}: tensor \"__metadata__\": the name is reserved", path);
    require(names.insert(t.name).second, "{}: tensor {} given twice", path, in_quotes(t.name));
    require(t.view.device.type == DeviceType::cpu && t.view.is_contiguous(),
            "{}: tensor {}: given {}, expected contiguous memory of the CPU", path, in_quotes(t.name),
            to_string(t.view));
    require(t.view.numel() * bits_of(t.view.dtype) % 8 == 0, "{}: tensor {}: given {}, expected whole bytes", path,
            in_quotes(t.name), to_string(t.view));
    require(t.view.data != nullptr || t.view.numel() == 0, "{}: tensor {}: null data", path, in_quotes(t.name));
  }
}

std::vector<const NamedTensor*> widest_first(const std::vector<NamedTensor>& tensors) {
  std::vector<const NamedTensor*> order;
  for (const NamedTensor& t : tensors) order.push_back(&t);
  std::stable_sort(order.begin(), order.end(), [](const NamedTensor* a, const NamedTensor* b) {
    return bits_of(a->view.dtype) > bits_of(b->view.dtype);
  });
  return order;
}

std::string header_text(const std::string& path, const std::vector<const NamedTensor*>& order,
                        const std::map<std::string, std::string>& metadata) {
  // Entry by entry, in the order of the data: an ordered document of nlohmann's searches all its keys at each
  // insertion.
  using nlohmann::json;
  std::string text = "{";
  std::int64_t offset = 0;
  try {
    if (!metadata.empty()) text += "\"__metadata__\":" + json(metadata).dump();
    for (const NamedTensor* t : order) {
      const auto shape = std::span(t->view.shape).first(static_cast<std::size_t>(t->view.rank));
      const std::int64_t end = offset + t->view.bytes();
      if (text.size() > 1) text += ',';
      text += fmt::format(R"({}:{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", json(t->name).dump(),
                          safetensors_code(t->view.dtype),
                          json(std::vector<std::int64_t>(shape.begin(), shape.end())).dump(), offset, end);
      offset = end;
    }
  } catch (const json::exception&) {
    fail(ErrorKind::invalid_argument, "{}: a tensor's name or a metadata text is not UTF-8", path);
  }
  text += '}';
  require(static_cast<std::int64_t>(text.size()) < kMaxHeaderBytes - 8, "{}: header of {} bytes, expected at most {}",
          path, text.size(), kMaxHeaderBytes);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

}  // namespace

void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  check(path, tensors);
  const std::vector<const NamedTensor*> order = widest_first(tensors);
  const std::string header = header_text(path, order, metadata);
  std::array<std::byte, 8> length{};
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<std::byte>(header.size() >> 8 * i);

  AtomicFile file(path);
  file.write(length);
  file.write(std::as_bytes(std::span(header)));
  for (const NamedTensor* t : order)
    file.write({static_cast<const std::byte*>(t->view.data), static_cast<std::size_t>(t->view.bytes())});
  file.commit();
}

}  // namespace conclave
