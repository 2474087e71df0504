// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: the problem of a whole layer. Out: what one rank of it computes, and its weights, when a cut of the inner width
// falls inside a group that shares a scale: groups are cut finer by repeating scales where the format has such a
// variant, else the weights are decoded. Every rank decides alike, from the cuts of all ranks.
#include "conclave/shard.hpp"

#include <algorithm>
#include <array>

#include "base/error.hpp"
#include "cpu/float_convert.hpp"
#include "quant/expert_matrices.hpp"
#include "quant/matrix.hpp"
#include "quant/weights_check.hpp"

namespace conclave {
namespace quant {
namespace {

using OptionalView = std::optional<ConstTensorView>;

/// Formats that differ in the length of their groups alone, longest first.
constexpr std::array<std::array<QuantKey, 3>, 2> kFinerGroups{{
    {QuantKey::int4_group128, QuantKey::int4_group64, QuantKey::int4_group32},
    {QuantKey::int4_group128_zp, QuantKey::int4_group64_zp, QuantKey::int4_group32_zp},
}};

/// f(begin, length) of every rank's slice of the inner width.
template <class F>
bool every_slice(const Problem& whole, F&& f) {
  for (std::int64_t rank = 0; rank < whole.parallel.tp_size; ++rank) {
    const ShardRange range = shard_range(whole.moe.intermediate_size, whole.parallel.tp_size, rank);
    if (!f(range.begin, range.length)) return false;
  }
  return true;
}

/// w2 has the inner width as columns.
bool columns_fit(const Format& f, const Problem& whole) {
  const std::int64_t size = whole.moe.intermediate_size;
  return every_slice(whole, [&](std::int64_t begin, std::int64_t length) {
    // Two elements of a byte go to one rank.
    if (f.bits == 4 && (begin % 2 != 0 || (length % 2 != 0 && begin + length != size))) return false;
    if (f.group.cols <= 1 || size <= f.group.cols) return f.group.cols <= 1 || f.short_last_group;
    return begin % f.group.cols == 0 && (length % f.group.cols == 0 || (f.short_last_group && begin + length == size));
  });
}

/// w13 has it as rows: of two halves, or two by two.
bool rows_fit(const Format& f, const Problem& whole) {
  const std::int64_t group = f.group.rows, size = whole.moe.intermediate_size;
  const bool gated = is_gated(whole.moe.activation);
  if (group <= 1 || w13_rows(gated, size) <= group) return true;
  const bool halves = gated && whole.moe.w13_layout != W13Layout::interleaved;
  if (halves && size % group != 0) return false;  // One block has rows of both.
  const std::int64_t step = gated && !halves ? 2 : 1;
  return every_slice(whole, [&](std::int64_t begin, std::int64_t) { return step * begin % group == 0; });
}

bool cuts_fit(QuantKey key, const Problem& whole) {
  const Format f = format_of(key, QuantRole::weights);
  return columns_fit(f, whole) && rows_fit(f, whole);
}

/// The format after the cut: the same, one with shorter groups, or none.
QuantKey key_after_cut(const Problem& whole) {
  const QuantKey key = whole.quant.weights;
  if (key == QuantKey::none || whole.parallel.tp_size == 1 || cuts_fit(key, whole)) return key;
  for (const auto& keys : kFinerGroups) {
    const auto found = std::find(keys.begin(), keys.end(), key);
    for (auto finer = found; finer != keys.end(); ++finer)
      if (cuts_fit(*finer, whole)) return *finer;
  }
  return QuantKey::none;
}

/// Every scale (or zero point) `times` times over.
ConstTensorView repeat_columns(const ConstTensorView& scales, std::int64_t times, std::vector<Tensor>& owned) {
  const Tensor& out = owned.emplace_back(
      scales.dtype, std::initializer_list<std::int64_t>{scales.size(0), scales.size(1), scales.size(2) * times});
  const std::int64_t bytes = bytes_of(scales.dtype, 1);
  for (std::int64_t e = 0; e < scales.size(0); ++e)
    for (std::int64_t row = 0; row < scales.size(1); ++row)
      for (std::int64_t col = 0; col < scales.size(2) * times; ++col)
        std::copy_n(scales.as<std::byte>() +
                        bytes * (e * scales.stride(0) + row * scales.stride(1) + col / times * scales.stride(2)),
                    bytes, out.view().at(e).at(row).as<std::byte>() + bytes * col);
  return out.view();
}

/// Weights with one group to a row may lack that dimension.
ConstTensorView with_columns(const ConstTensorView& view) {
  if (view.rank == 3) return view;
  ConstTensorView v = view;
  v.rank = 3;
  v.shape[2] = 1;
  v.strides[2] = 1;
  return v;
}

ShardedWeights cut_finer(const Problem& whole, QuantKey key, const ExpertWeights& weights) {
  const std::int64_t times =
      format_of(whole.quant.weights, QuantRole::weights).group.cols / format_of(key, QuantRole::weights).group.cols;
  std::vector<Tensor> owned;
  ExpertWeights finer = weights;
  for (OptionalView* view : {&finer.w13_scale, &finer.w2_scale, &finer.w13_zero_point, &finer.w2_zero_point})
    if (*view) *view = repeat_columns(with_columns(**view), times, owned);
  ShardedWeights sharded = shard_weights(whole.moe, finer, whole.parallel);
  for (Tensor& tensor : owned) sharded.owned.push_back(std::move(tensor));
  return sharded;
}

/// Tensor-wide scales hold for any part of the tensor.
ShardedWeights cut_elements(const Problem& whole, const ExpertWeights& weights) {
  ExpertWeights without = weights;
  without.w13_scale.reset();
  without.w2_scale.reset();
  ShardedWeights sharded = shard_weights(whole.moe, without, whole.parallel);
  sharded.experts.w13_scale = weights.w13_scale;
  sharded.experts.w2_scale = weights.w2_scale;
  return sharded;
}

/// mxfp4 is a number of two bits times a power of two: bf16 holds it.
DType decoded_dtype(QuantKey key) noexcept {
  return key == QuantKey::mxfp4 ? DType::bf16 : DType::f32;
}

class Decoder {
 public:
  Decoder(const Problem& whole, const ExpertWeights& weights)
      : moe_(whole.moe),
        key_(whole.quant.weights),
        weights_(weights),
        range_(shard_range(moe_.intermediate_size, whole.parallel.tp_size, whole.parallel.tp_rank)),
        row_(static_cast<std::size_t>(std::max(moe_.intermediate_size, moe_.expert_width()))) {
    check_quantised_weights(moe_, key_, weights);
  }

  Tensor w13() {
    const bool gated = is_gated(moe_.activation);
    Tensor out = make(w13_rows(gated, range_.length), moe_.expert_width());
    for_each_row([&](std::int64_t e) { return w13_matrices(moe_, key_, weights_, e); },
                 [&](std::int64_t e, std::int64_t row) {
                   if (const std::int64_t to = shard_row(gated, row); to >= 0)
                     cpu::store_f32(row_.data(), out.view().dtype, moe_.expert_width(), out.view().at(e).at(to).data);
                 });
    return out;
  }

  Tensor w2() {
    Tensor out = make(moe_.expert_width(), range_.length);
    for_each_row([&](std::int64_t e) { return w2_matrices(moe_, key_, weights_, e); },
                 [&](std::int64_t e, std::int64_t row) {
                   cpu::store_f32(row_.data() + range_.begin, out.view().dtype, range_.length,
                                  out.view().at(e).at(row).data);
                 });
    return out;
  }

 private:
  Tensor make(std::int64_t rows, std::int64_t cols) const {
    return Tensor(decoded_dtype(key_), {weights_.num_local_experts(), rows, cols});
  }

  template <class Matrices, class F>
  void for_each_row(Matrices&& matrices_of, F&& f) {
    for (std::int64_t e = 0; e < weights_.num_local_experts(); ++e)
      for (const ExpertMatrix& part : matrices_of(e)) {
        const Format format = format_of(part.matrix.key, part.matrix.role);
        for (std::int64_t r = 0; r < part.matrix.rows; ++r) {
          dequantise_row(format, part.matrix, r, row_.data());
          f(e, part.first_row + r * part.row_step);
        }
      }
  }

  /// Where a row of w13 is in the slice; -1 if another rank has it.
  std::int64_t shard_row(bool gated, std::int64_t row) const {
    const bool interleaved = gated && moe_.w13_layout == W13Layout::interleaved;
    const std::int64_t half = interleaved ? row % 2 : row / moe_.intermediate_size;
    const std::int64_t unit = (interleaved ? row / 2 : row % moe_.intermediate_size) - range_.begin;
    if (unit < 0 || unit >= range_.length) return -1;
    return interleaved ? 2 * unit + half : half * range_.length + unit;
  }

  const MoeConfig& moe_;
  QuantKey key_;
  const ExpertWeights& weights_;
  ShardRange range_;
  std::vector<float> row_;
};

ShardedWeights decode_slice(const Problem& whole, const ExpertWeights& weights) {
  Decoder decoder(whole, weights);
  Tensor w13 = decoder.w13(), w2 = decoder.w2();
  // What is no matrix is cut as ever.
  ExpertWeights rest = weights;
  rest.w13 = rest.w2 = {};
  for (OptionalView* view : {&rest.w13_scale, &rest.w2_scale, &rest.w13_global_scale, &rest.w2_global_scale,
                             &rest.w13_zero_point, &rest.w2_zero_point})
    view->reset();
  ShardedWeights sharded = shard_weights(whole.moe, rest, whole.parallel);
  sharded.experts.w13 = w13.view();
  sharded.experts.w2 = w2.view();
  sharded.owned.push_back(std::move(w13));
  sharded.owned.push_back(std::move(w2));
  return sharded;
}

}  // namespace
}  // namespace quant

Problem shard_problem(const Problem& whole) {
  Problem p = whole;
  p.moe = shard_config(whole.moe, whole.parallel);
  const QuantKey key = whole.quant.weights;
  p.quant.weights = quant::key_after_cut(whole);
  if (p.quant.weights == key) return p;
  const std::string cut = fmt::format("{} ranks cut intermediate_size {} inside its groups", whole.parallel.tp_size,
                                      whole.moe.intermediate_size);
  if (p.quant.weights != QuantKey::none) {
    p.notes.push_back(
        fmt::format("weights: {} as {}, scales repeated: {}", name_of(key), name_of(p.quant.weights), cut));
    return p;
  }
  p.moe.weight_dtype = quant::decoded_dtype(key);
  p.notes.push_back(fmt::format("weights: {} decoded to {}: {}", name_of(key), name_of(p.moe.weight_dtype), cut));
  return p;
}

ShardedWeights shard_weights(const Problem& whole, const ExpertWeights& weights) {
  const QuantKey key = whole.quant.weights;
  if (key == QuantKey::none || whole.parallel.tp_size == 1) return shard_weights(whole.moe, weights, whole.parallel);
  const QuantKey after = quant::key_after_cut(whole);
  if (after == QuantKey::none) return quant::decode_slice(whole, weights);
  if (after != key) return quant::cut_finer(whole, after, weights);
  if (quant::format_of(key, QuantRole::weights).scale_is_tensor_wide()) return quant::cut_elements(whole, weights);
  return shard_weights(whole.moe, weights, whole.parallel);
}

}  // namespace conclave
