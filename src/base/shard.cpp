// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Cuts by expert are strides; cuts by inner width are columns of w2 and one or two runs of rows of w13.
#include "conclave/shard.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/tensor_format.hpp"

namespace conclave {
namespace {

using Optional = std::optional<ConstTensorView>;

/// The experts that a rank holds: `count` from `first`, every `step`-th; after the last expert comes the first again.
struct ExpertSlice {
  std::int64_t first, count, step, num_experts;
  std::int64_t expert(std::int64_t i) const noexcept { return (first + i * step) % num_experts; }
  bool wraps() const noexcept { return first + count > num_experts && step == 1; }
};

/// The slots of initial_placement(), equally many on each rank.
ExpertSlice slots_of(std::int64_t num_experts, const ParallelConfig& p) {
  const std::int64_t slots = num_experts + p.num_redundant_experts;
  require(slots % p.ep_size == 0, "num_redundant_experts: {} slots over {} ranks, expected a multiple", slots,
          p.ep_size);
  const std::int64_t count = slots / p.ep_size;
  return {p.ep_rank * count % num_experts, count, 1, num_experts};
}

ExpertSlice slice_of(std::int64_t num_experts, const ParallelConfig& p) {
  if (p.enable_eplb) return slots_of(num_experts, p);
  const ExpertMap map = make_expert_map(num_experts, p.ep_size, p.ep_rank, p.placement);
  const std::int64_t first = map.global_id.empty() ? 0 : map.global_id.front();
  return {first, map.num_local(), p.placement == Placement::round_robin ? p.ep_size : 1, num_experts};
}

/// All elements of a view of at most two dimensions, the last of them contiguous, one behind the other.
std::byte* copy_entry(const ConstTensorView& from, std::byte* to) {
  const std::int64_t rows = from.rank == 2 ? from.size(0) : 1;
  const std::int64_t bytes = bytes_of(from.dtype, from.rank == 0 ? 1 : from.size(-1));
  for (std::int64_t r = 0; r < rows; ++r)
    to = std::copy_n((from.rank == 2 ? from.at(r) : from).as<std::byte>(), bytes, to);
  return to;
}

/// A view where strides can say it, else a copy.
ConstTensorView cut(const ConstTensorView& view, const ExpertSlice& slice, std::vector<Tensor>& owned) {
  if (slice.wraps()) {
    std::vector<std::int64_t> shape(view.shape.begin(), view.shape.begin() + view.rank);
    shape[0] = slice.count;
    const Tensor& copy = owned.emplace_back(view.dtype, std::span<const std::int64_t>(shape));
    std::byte* next = copy.as<std::byte>();
    for (std::int64_t i = 0; i < slice.count; ++i) next = copy_entry(view.at(slice.expert(i)), next);
    return copy.view();
  }
  ConstTensorView v = view.narrow(0, slice.first, slice.count);
  v.strides[0] *= slice.step;
  return v;
}

/// One for each expert, or (a scale of all activations) one for all.
void cut_experts(Optional& view, const ExpertSlice& slice, std::vector<Tensor>& owned) {
  if (view && view->rank > 0 && view->size(0) == slice.num_experts) view = cut(*view, slice, owned);
}

void cut_by_expert(const ParallelConfig& parallel, ShardedWeights& sharded) {
  ExpertWeights& w = sharded.experts;
  const ExpertSlice slice = slice_of(w.num_local_experts(), parallel);
  w.w13 = cut(w.w13, slice, sharded.owned);
  w.w2 = cut(w.w2, slice, sharded.owned);
  for (Optional* view : {&w.w13_bias, &w.w2_bias, &w.w13_scale, &w.w2_scale, &w.w13_global_scale, &w.w2_global_scale,
                         &w.w13_zero_point, &w.w2_zero_point, &w.a1_scale, &w.a2_scale})
    cut_experts(*view, slice, sharded.owned);
  const Tensor& ids = sharded.owned.emplace_back(DType::i32, std::initializer_list<std::int64_t>{slice.count});
  for (std::int64_t i = 0; i < slice.count; ++i) ids.as<std::int32_t>()[i] = static_cast<std::int32_t>(slice.expert(i));
  w.expert_ids = ids.view();
}

/// How many elements one of `extent` entries stands for: one, two halves of a byte, or a group of a quantisation key.
/// The last group may be short (3 of 128 for 300), so the quotient does not say; but no two of these give the same
/// extent above 1.
std::int64_t group_of(std::int64_t size, std::int64_t extent) {
  for (const std::int64_t group : {1, 2, 16, 32, 64, 128})
    if ((size + group - 1) / group == extent) return group;
  return (size + extent - 1) / extent;
}

/// [begin, begin + length) of `size` elements, in a view whose dimension has `extent` entries for all of them.
ShardRange scaled(const char* what, const ShardRange& range, std::int64_t size, std::int64_t extent) {
  if (extent <= 1) return {0, extent};
  const std::int64_t group = group_of(size, extent);
  require(range.begin % group == 0 && (range.length % group == 0 || range.begin + range.length == size),
          "{}: the slice [{}, {}) of {} cuts a group of {}, expected whole groups on every rank", what, range.begin,
          range.begin + range.length, size, group);
  return {range.begin / group, (range.length + group - 1) / group};
}

/// Rows [begin, begin + length) of each of `halves` halves of dimension 1, one half behind the other.
ConstTensorView copy_halves(const ConstTensorView& view, const ShardRange& rows, std::int64_t halves,
                            std::vector<Tensor>& owned) {
  std::vector<std::int64_t> shape(view.shape.begin(), view.shape.begin() + view.rank);
  const std::int64_t half = shape[1] / halves;
  shape[1] = halves * rows.length;
  owned.emplace_back(view.dtype, std::span<const std::int64_t>(shape));
  const TensorView to = owned.back();
  const std::int64_t row_bytes = view.rank > 2 ? bytes_of(view.dtype, view.size(2)) : bytes_of(view.dtype, 1);
  for (std::int64_t e = 0; e < view.size(0); ++e)
    for (std::int64_t h = 0; h < halves; ++h)
      for (std::int64_t r = 0; r < rows.length; ++r)
        std::copy_n(view.at(e).at(h * half + rows.begin + r).as<std::byte>(), row_bytes,
                    to.at(e).at(h * rows.length + r).as<std::byte>());
  return to;
}

/// A tensor of w13: dimension 1 has its rows, or groups of them.
void cut_w13_rows(const char* what, const MoeConfig& moe, const ShardRange& range, ConstTensorView& view,
                  std::vector<Tensor>& owned) {
  if (view.rank < 2) return;
  const bool gated = is_gated(moe.activation);
  const std::int64_t all_rows = w13_rows(gated, moe.intermediate_size);
  if (!gated || moe.w13_layout == W13Layout::interleaved) {
    const std::int64_t per_unit = gated ? 2 : 1;
    const ShardRange rows = scaled(what, {per_unit * range.begin, per_unit * range.length}, all_rows, view.size(1));
    view = view.narrow(1, rows.begin, rows.length);
    return;
  }
  if (view.size(1) <= 1) return;
  require(view.size(1) % 2 == 0, "{}: given {} groups of rows, expected as many for gate as for up", what,
          view.size(1));
  const ShardRange rows = scaled(what, range, moe.intermediate_size, view.size(1) / 2);
  view = copy_halves(view, rows, 2, owned);
}

/// A tensor of w2: the last of three dimensions has its columns, or groups of them.
void cut_w2_columns(const char* what, const MoeConfig& moe, const ShardRange& range, ConstTensorView& view) {
  if (view.rank < 3) return;
  const ShardRange columns = scaled(what, range, moe.intermediate_size, view.size(2));
  view = view.narrow(2, columns.begin, columns.length);
}

void cut_by_width(const MoeConfig& moe, const ParallelConfig& parallel, ShardedWeights& sharded) {
  const ShardRange range = shard_range(moe.intermediate_size, parallel.tp_size, parallel.tp_rank);
  ExpertWeights& w = sharded.experts;
  cut_w13_rows("w13", moe, range, w.w13, sharded.owned);
  cut_w2_columns("w2", moe, range, w.w2);
  for (auto [what, view] : {std::pair<const char*, Optional*>{"w13_bias", &w.w13_bias},
                            {"w13_scale", &w.w13_scale},
                            {"w13_zero_point", &w.w13_zero_point}})
    if (*view) cut_w13_rows(what, moe, range, **view, sharded.owned);
  for (auto [what, view] :
       {std::pair<const char*, Optional*>{"w2_scale", &w.w2_scale}, {"w2_zero_point", &w.w2_zero_point}})
    if (*view) cut_w2_columns(what, moe, range, **view);
}

}  // namespace

ShardRange shard_range(std::int64_t size, std::int64_t num_ranks, std::int64_t rank) {
  require(num_ranks > 0 && rank >= 0 && rank < num_ranks, "shard: rank {} of {}, expected 0 to {}", rank, num_ranks,
          num_ranks - 1);
  const std::int64_t base = size / num_ranks, extra = size % num_ranks;
  return {rank * base + std::min(rank, extra), base + (rank < extra ? 1 : 0)};
}

ShardedWeights shard_weights(const MoeConfig& moe, const ExpertWeights& weights, const ParallelConfig& parallel) {
  ShardedWeights sharded;
  sharded.experts = weights;
  sharded.experts.give_up = nullptr;
  if (parallel.ep_size > 1) cut_by_expert(parallel, sharded);
  if (parallel.tp_size > 1) cut_by_width(moe, parallel, sharded);
  return sharded;
}

MoeConfig shard_config(const MoeConfig& moe, const ParallelConfig& parallel) {
  MoeConfig c = moe;
  c.intermediate_size = shard_range(moe.intermediate_size, parallel.tp_size, parallel.tp_rank).length;
  c.shared.intermediate_size = shard_range(moe.shared.intermediate_size, parallel.tp_size, parallel.tp_rank).length;
  return c;
}

Tensor expert_map_tensor(const MoeConfig& moe, const ParallelConfig& parallel) {
  const ExpertMap map =
      make_expert_map(moe.num_weight_experts(), parallel.ep_size, parallel.ep_rank, parallel.placement);
  Tensor tensor(DType::i32, {moe.num_weight_experts()});
  std::copy(map.local_slot.begin(), map.local_slot.end(), tensor.as<std::int32_t>());
  return tensor;
}

}  // namespace conclave
