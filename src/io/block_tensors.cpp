// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Names -> tensors of one block. Every tensor that is taken is ticked off; what remains is reported.
#include "io/block_tensors.hpp"

#include <set>

#include "base/error.hpp"
#include "io/json_text.hpp"

namespace conclave {
namespace {

using Shape = std::vector<std::int64_t>;

std::string expected_text(const Shape& shape) {
  std::string text;
  for (std::int64_t extent : shape) text += fmt::format("{}{}", text.empty() ? "" : ", ", extent);
  return "[" + text + "]";
}

class Resolver {
 public:
  Resolver(const BlockPlace& place, const TensorStore& store) : place_(place), store_(store) {
    for (const std::string& name : place.tensors) left_.insert(name);
  }

  /// Throws where it is missing or its shape is not `shape`. A [1, n] is taken for an [n].
  StoredTensor take(std::string_view name, const Shape& shape) {
    const std::string full = place_.prefix + std::string(name);
    const StoredTensor* found = store_.find(full);
    if (found == nullptr)
      fail(ErrorKind::bad_file, "{}: tensor {} is missing, expected shape {}", store_.path(), in_quotes(full),
           expected_text(shape));
    left_.erase(full);
    StoredTensor tensor = *found;
    if (shape.size() == 1 && tensor.view.rank == 2 && tensor.view.size(0) == 1) tensor.view = tensor.view.at(0);
    const auto dims = std::span(tensor.view.shape).first(static_cast<std::size_t>(tensor.view.rank));
    if (!std::equal(dims.begin(), dims.end(), shape.begin(), shape.end()))
      fail(ErrorKind::bad_file, "{}: tensor {}: given {}, expected shape {}", tensor.file->path(), in_quotes(full),
           to_string(tensor.view), expected_text(shape));
    if (!is_compute_dtype(tensor.view.dtype))
      fail(ErrorKind::bad_file, "{}: tensor {}: given {}, expected f32, bf16 or f16", tensor.file->path(),
           in_quotes(full), to_string(tensor.view));
    bytes_ += tensor.view.bytes();
    ++count_;
    return tensor;
  }

  /// The first of the alternatives that the file has; the error names the first.
  StoredTensor take_any(const Names& names, const Shape& shape) {
    for (std::string_view name : names)
      if (!name.empty() && left_.contains(place_.prefix + std::string(name))) return take(name, shape);
    return take(names[0], shape);
  }

  /// take(), and all matrices taken this way share one dtype: that of the first.
  StoredTensor take_matrix(std::string_view name, const Shape& shape) {
    StoredTensor tensor = take(name, shape);
    if (!dtype_) dtype_ = tensor.view.dtype;
    if (tensor.view.dtype != *dtype_)
      fail(ErrorKind::bad_file, "{}: tensor {}: given {}, expected {} as the block's other matrices",
           tensor.file->path(), in_quotes(place_.prefix + std::string(name)), to_string(tensor.view), name_of(*dtype_));
    return tensor;
  }

  /// Understood and not needed; fine where it is absent.
  void ignore(std::string_view name) { left_.erase(place_.prefix + std::string(name)); }

  void finish(BlockTensors& out) const {
    out.dtype = dtype_.value_or(DType::bf16);
    out.bytes = bytes_;
    out.num_tensors = count_;
    out.not_understood.assign(left_.begin(), left_.end());
  }

 private:
  const BlockPlace& place_;
  const TensorStore& store_;
  std::set<std::string> left_;
  std::optional<DType> dtype_;
  std::int64_t bytes_ = 0;
  std::int64_t count_ = 0;
};

std::string numbered(std::string_view pattern, std::int64_t expert) {
  std::string name(pattern);
  name.replace(name.find("{}"), 2, std::to_string(expert));
  return name;
}

void take_each(Resolver& from, const ExpertNames& names, const MoeConfig& moe, BlockTensors& out) {
  const std::int64_t width = moe.expert_width();
  const std::int64_t inner = moe.intermediate_size;
  for (std::int64_t e = 0; e < moe.num_weight_experts(); ++e) {
    if (!names.gate.empty()) out.gate.push_back(from.take_matrix(numbered(names.gate, e), {inner, width}));
    out.up.push_back(from.take_matrix(numbered(names.up, e), {inner, width}));
    out.down.push_back(from.take_matrix(numbered(names.down, e), {width, inner}));
  }
  // The public implementation of LongCat allots first matrices to its zero experts as well, saves and never reads them.
  for (std::int64_t e = moe.num_weight_experts(); e < moe.num_experts; ++e)
    for (std::string_view name : {names.gate, names.up}) from.ignore(numbered(name, e));
}

void take_together(Resolver& from, const ExpertNames& names, const MoeConfig& moe, BlockTensors& out) {
  const std::int64_t experts = moe.num_weight_experts();
  const std::int64_t width = moe.expert_width();
  const std::int64_t inner = moe.intermediate_size;
  const std::int64_t rows = w13_rows(is_gated(moe.activation), inner);
  const bool transposed = names.layout == ExpertLayout::fused_transposed;
  if (names.layout == ExpertLayout::flat) {
    out.gate.push_back(from.take_matrix(names.gate, {experts * inner, width}));
    out.up.push_back(from.take_matrix(names.up, {experts * inner, width}));
    out.down.push_back(from.take_matrix(names.down, {experts * inner, width}));
    return;
  }
  const std::string_view first = names.gate.empty() ? names.up : names.gate;
  out.up.push_back(from.take_matrix(first, transposed ? Shape{experts, width, rows} : Shape{experts, rows, width}));
  out.down.push_back(
      from.take_matrix(names.down, transposed ? Shape{experts, inner, width} : Shape{experts, width, inner}));
  if (moe.has_w13_bias) out.w13_bias = from.take(names.w13_bias, {experts, rows});
  if (moe.has_w2_bias) out.w2_bias = from.take(names.w2_bias, {experts, width});
}

void take_shared(Resolver& from, const Family& family, const MoeConfig& moe, BlockTensors& out) {
  const std::int64_t inner = moe.shared.intermediate_size;
  const std::int64_t width = moe.hidden_size;
  if (inner == 0) return;
  const std::string prefix(family.shared);
  if (is_gated(moe.activation)) out.shared_gate_proj = from.take_matrix(prefix + "gate_proj.weight", {inner, width});
  out.shared_up_proj = from.take_matrix(prefix + "up_proj.weight", {inner, width});
  out.shared_down_proj = from.take_matrix(prefix + "down_proj.weight", {width, inner});
  if (moe.shared.sigmoid_gate) out.shared_gate = from.take(family.shared_gate, {width});
}

/// An expert beyond the config's count means that the two files do not belong together.
void refuse_more_experts(const BlockPlace& place, const MoeConfig& moe, const TensorStore& store,
                         const std::vector<std::string>& left) {
  if (place.experts->layout != ExpertLayout::each) return;
  const std::string next = place.prefix + numbered(place.experts->up, moe.num_weight_experts());
  for (const std::string& name : left)
    if (name == next)
      fail(ErrorKind::bad_file, "{}: tensor {}: given more experts, expected {} as in config.json",
           store.find(name)->file->path(), in_quotes(name), moe.num_weight_experts());
}

}  // namespace

BlockTensors resolve_block(const Family& family, const BlockPlace& place, const MoeConfig& moe,
                           const TensorStore& store) {
  Resolver from(place, store);
  BlockTensors out;
  out.layout = place.experts->layout;
  if (out.layout == ExpertLayout::each)
    take_each(from, *place.experts, moe, out);
  else
    take_together(from, *place.experts, moe, out);
  out.router = from.take_any(family.router, {moe.num_experts, moe.hidden_size});
  if (!family.router_bias.empty()) out.router_bias = from.take(family.router_bias, {moe.num_experts});
  if (moe.routing.has_bias) out.correction_bias = from.take_any(family.correction_bias, {moe.num_experts});
  take_shared(from, family, moe, out);
  if (moe.latent_size > 0) {
    out.latent_in = from.take_matrix(family.latent_in, {moe.latent_size, moe.hidden_size});
    out.latent_out = from.take_matrix(family.latent_out, {moe.hidden_size, moe.latent_size});
  }
  from.finish(out);
  refuse_more_experts(place, moe, store, out.not_understood);
  return out;
}

}  // namespace conclave
