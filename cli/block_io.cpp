// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Look-ups by name and shape in a safetensors file.
#include "block_io.hpp"

#include "convert.hpp"
#include "error.hpp"

namespace conclave::cli {
namespace {

/// [1, M, k] and [M, k] alike.
bool is_matrix(const ConstTensorView& view, std::int64_t rows, std::int64_t columns) {
  return view.rank >= 2 && view.size(-1) == columns && view.numel() == rows * columns && view.size(-2) == rows;
}

ConstTensorView as_matrix(const ConstTensorView& view) {
  const std::int64_t columns = view.size(-1);
  return {view.data, view.dtype, {columns > 0 ? view.numel() / columns : 0, columns}};
}

}  // namespace

std::vector<std::string> blocks_to_run(const Checkpoint& checkpoint, const SafetensorsFile& file,
                                       const std::string& option, std::vector<std::string>& skipped) {
  if (option != "all") {
    const std::string name = checkpoint.block(option).name;
    file.get(name + ".input");
    return {name};
  }
  std::vector<std::string> blocks;
  for (const BlockInfo& block : checkpoint.blocks())
    (file.find(block.name + ".input") != nullptr ? blocks : skipped).push_back(block.name);
  if (blocks.empty()) {
    if (checkpoint.blocks().empty()) bad_input("{}: no MoE block in this checkpoint", checkpoint.folder());
    bad_input("{}: no tensor \"{}.input\", nor one of another block", file.path(), checkpoint.blocks().front().name);
  }
  return blocks;
}

ConstTensorView rows_of(const SafetensorsFile& file, const std::string& name, std::int64_t hidden_size) {
  const ConstTensorView& view = file.get(name);
  if (view.rank < 2 || view.size(-1) != hidden_size || !is_convertible(view.dtype))
    bad_input("{}: tensor \"{}\": given {}, expected f64, f32, bf16 or f16 of shape [M, {}] or [1, M, {}]", file.path(),
              name, to_string(view), hidden_size, hidden_size);
  return as_matrix(view);
}

std::optional<Tensor> ids_of(const SafetensorsFile& file, const std::string& block, std::int64_t num_tokens,
                             std::int64_t top_k) {
  for (const char* suffix : {".topk_ids", ".router_out0", ".router_out1", ".router_out2"}) {
    const ConstTensorView* view = file.find(block + suffix);
    if (view == nullptr || !is_integer(view->dtype) || !is_matrix(*view, num_tokens, top_k)) continue;
    return convert_ids(as_matrix(*view), suffix);
  }
  return std::nullopt;
}

}  // namespace conclave::cli
