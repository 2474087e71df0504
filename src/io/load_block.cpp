// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Gathering, with memory in mind: at any moment a matrix is in the file's pages or in ours, hardly ever in both.
#include "io/load_block.hpp"

#include <vector>

#include "base/error.hpp"
#include "io/gather.hpp"
#include "io/load_codes.hpp"

namespace conclave {
namespace {

/// What the views of a LayerWeights point into.
struct StoreOwner {
  std::shared_ptr<const TensorStore> store;
  std::vector<std::shared_ptr<Storage>> buffers;

  const Tensor& keep(const Tensor& tensor) {
    buffers.push_back(tensor.storage());
    return tensor;
  }
  /// The bytes belong to one of the buffers or files; the others ignore them.
  void give_up(const void* begin, std::int64_t bytes) const {
    for (const auto& buffer : buffers) buffer->discard(begin, bytes);
    for (const auto& file : store->files()) file->give_up(begin, bytes);
  }
};

void move_in(const StoredTensor& from, const TensorView& to) {
  copy(from.view, to);
  from.file->give_up(from.view.data, from.view.bytes());
}

/// The matrix `index` of a tensor [count * rows, cols], as [rows, cols].
ConstTensorView slice(const StoredTensor& tensor, std::int64_t index, std::int64_t rows) {
  return tensor.view.narrow(0, index * rows, rows);
}

/// [E, 2I, W] from gate and up (or up alone) of every expert.
Tensor gather_w13(const BlockTensors& block, const MoeConfig& moe) {
  const std::int64_t inner = moe.intermediate_size;
  const bool gated = is_gated(moe.activation);
  Tensor out(block.dtype, {moe.num_weight_experts(), w13_rows(gated, inner), moe.expert_width()});
  for (std::int64_t e = 0; e < moe.num_weight_experts(); ++e) {
    const TensorView rows = out.view().at(e);
    const auto i = static_cast<std::size_t>(e);
    if (gated) move_in(block.gate[i], rows.narrow(0, 0, inner));
    move_in(block.up[i], rows.narrow(0, gated ? inner : 0, inner));
  }
  return out;
}

Tensor gather_w2(const BlockTensors& block, const MoeConfig& moe) {
  Tensor out(block.dtype, {moe.num_weight_experts(), moe.expert_width(), moe.intermediate_size});
  for (std::int64_t e = 0; e < moe.num_weight_experts(); ++e)
    move_in(block.down[static_cast<std::size_t>(e)], out.view().at(e));
  return out;
}

/// [E, cols, rows] from [E, rows, cols].
Tensor transposed(const StoredTensor& tensor) {
  const ConstTensorView& from = tensor.view;
  Tensor out(from.dtype, {from.size(0), from.size(2), from.size(1)});
  for (std::int64_t e = 0; e < from.size(0); ++e) {
    transpose(from.at(e), out.view().at(e));
    tensor.file->give_up(from.at(e).data, from.at(e).bytes());
  }
  return out;
}

void load_flat(const BlockTensors& block, const MoeConfig& moe, StoreOwner& owner, ExpertWeights& out) {
  const std::int64_t inner = moe.intermediate_size;
  const std::int64_t experts = moe.num_weight_experts();
  Tensor w13(block.dtype, {experts, 2 * inner, moe.hidden_size});
  Tensor w2(block.dtype, {experts, moe.hidden_size, inner});
  for (std::int64_t e = 0; e < experts; ++e) {
    copy(slice(block.gate[0], e, inner), w13.view().at(e).narrow(0, 0, inner));
    copy(slice(block.up[0], e, inner), w13.view().at(e).narrow(0, inner, inner));
    transpose(slice(block.down[0], e, inner), w2.view().at(e));
    for (const StoredTensor* part : {&block.gate[0], &block.up[0], &block.down[0]})
      part->file->give_up(slice(*part, e, inner).data, slice(*part, e, inner).bytes());
  }
  out.w13 = owner.keep(w13);
  out.w2 = owner.keep(w2);
}

/// [E, 2I, ...] from gate and up [E, I, ...].
Tensor above_each_other(const StoredTensor& gate, const StoredTensor& up) {
  std::vector<std::int64_t> shape(gate.view.shape.begin(), gate.view.shape.begin() + gate.view.rank);
  shape[1] *= 2;
  Tensor out(gate.view.dtype, std::span<const std::int64_t>(shape));
  const std::int64_t inner = gate.view.size(1);
  for (std::int64_t e = 0; e < gate.view.size(0); ++e)
    for (const StoredTensor* part : {&gate, &up})
      move_in({part->file, part->view.at(e)}, out.view().at(e).narrow(0, part == &up ? inner : 0, inner));
  return out;
}

void load_coded(const BlockTensors& block, const MoeConfig& moe, StoreOwner& owner, ExpertWeights& out) {
  const std::int64_t experts = moe.num_weight_experts();
  const CodedMatrices w13 = load_codes(block.coded.gate, block.coded.up, experts, block.key);
  const CodedMatrices w2 = load_codes({}, block.coded.down, experts, block.key);
  const auto keep_if = [&](const std::optional<Tensor>& tensor) -> std::optional<ConstTensorView> {
    if (!tensor) return std::nullopt;
    return owner.keep(*tensor);
  };
  out.w13 = owner.keep(w13.elements);
  out.w2 = owner.keep(w2.elements);
  out.w13_scale = keep_if(w13.scale);
  out.w2_scale = keep_if(w2.scale);
  out.w13_global_scale = keep_if(w13.global_scale);
  out.w2_global_scale = keep_if(w2.global_scale);
  out.w13_zero_point = keep_if(w13.zero_point);
  out.w2_zero_point = keep_if(w2.zero_point);
}

void load_plain(const BlockTensors& block, const MoeConfig& moe, StoreOwner& owner, ExpertWeights& out) {
  switch (block.layout) {
    case ExpertLayout::each:
      out.w13 = owner.keep(gather_w13(block, moe));
      out.w2 = owner.keep(gather_w2(block, moe));
      break;
    case ExpertLayout::fused:
      out.w13 = block.up[0].view;
      out.w2 = block.down[0].view;
      break;
    case ExpertLayout::fused_transposed:
      out.w13 = owner.keep(transposed(block.up[0]));
      out.w2 = owner.keep(transposed(block.down[0]));
      break;
    case ExpertLayout::flat:
      load_flat(block, moe, owner, out);
      break;
    case ExpertLayout::stacked:
      out.w13 = owner.keep(above_each_other(block.gate[0], block.up[0]));
      out.w2 = block.down[0].view;
      break;
  }
}

ExpertWeights load_experts(const BlockTensors& block, const MoeConfig& moe, StoreOwner& owner) {
  ExpertWeights out;
  if (block.coded.up.empty())
    load_plain(block, moe, owner, out);
  else
    load_coded(block, moe, owner, out);
  if (block.up_bias)
    out.w13_bias = owner.keep(above_each_other(*block.w13_bias, *block.up_bias));
  else if (block.w13_bias)
    out.w13_bias = block.w13_bias->view;
  if (block.w2_bias) out.w2_bias = block.w2_bias->view;
  return out;
}

/// The matrix without its expert.
ConstTensorView first(const Tensor& experts) {
  return ConstTensorView(experts).at(0);
}

/// Into a type that the file does not have: f32, beside decoded matrices.
ConstTensorView in_dtype(const ConstTensorView& view, DType dtype, StoreOwner& owner) {
  return view.dtype == dtype ? view : ConstTensorView(owner.keep(widened(view)));
}

void load_shared(const BlockTensors& block, const MoeConfig& moe, StoreOwner& owner, LayerWeights& out) {
  if (block.shared_gate) out.shared_gate = block.shared_gate->view;
  if (!block.coded_shared.up.empty()) {
    const StoredExperts& shared = block.coded_shared;
    out.shared_w13 = first(owner.keep(load_codes(shared.gate, shared.up, 1, QuantKey::none).elements));
    out.shared_w2 = first(owner.keep(load_codes({}, shared.down, 1, QuantKey::none).elements));
    return;
  }
  if (!block.shared_up_proj) return;
  const std::int64_t inner = moe.shared.intermediate_size;
  const bool gated = is_gated(moe.activation);
  Tensor w13(block.shared_up_proj->view.dtype, {w13_rows(gated, inner), moe.hidden_size});
  if (gated) move_in(*block.shared_gate_proj, w13.view().narrow(0, 0, inner));
  move_in(*block.shared_up_proj, w13.view().narrow(0, gated ? inner : 0, inner));
  out.shared_w13 = in_dtype(owner.keep(w13), block.dtype, owner);
  out.shared_w2 = in_dtype(block.shared_down_proj->view, block.dtype, owner);
}

}  // namespace

LayerWeights load_block(const BlockTensors& block, const MoeConfig& moe, std::shared_ptr<const TensorStore> store) {
  const auto owner = std::make_shared<StoreOwner>(StoreOwner{std::move(store), {}});
  LayerWeights out;
  out.experts = load_experts(block, moe, *owner);
  load_shared(block, moe, *owner, out);
  out.router_weight = block.router->view;
  if (block.router_bias) out.router_bias = block.router_bias->view;
  // Routers take it in f32, whatever a checkpoint rounded it to.
  if (block.correction_bias) out.e_score_correction_bias = owner->keep(widened(block.correction_bias->view));
  if (block.latent_in) out.latent_in = block.latent_in->view;
  if (block.latent_out) out.latent_out = block.latent_out->view;
  out.experts.give_up = [owner](const void* begin, std::int64_t bytes) { owner->give_up(begin, bytes); };
  out.keep_alive = owner;
  return out;
}

}  // namespace conclave
