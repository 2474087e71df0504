// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// One row a tensor: name, where it goes, dtypes, shape.
#include "io/case_tensors.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "io/gather.hpp"
#include "io/json_text.hpp"

namespace conclave {
namespace {

using Shape = std::vector<std::int64_t>;
using Slot = std::optional<ConstTensorView>;

std::string text_of(const Shape& shape) {
  std::string text;
  for (std::int64_t extent : shape) text += fmt::format("{}{}", text.empty() ? "" : ", ", extent);
  return "[" + text + "]";
}

Shape without_trailing_ones(Shape shape) {
  while (!shape.empty() && shape.back() == 1) shape.pop_back();
  return shape;
}

class Reader {
 public:
  Reader(const SafetensorsFile& file, Case& out) : file_(file), case_(out) {}

  const ConstTensorView* find(const char* name) {
    known_.push_back(name);
    return file_.find(name);
  }

  /// Floats of 16 or 32 bits.
  bool real(const char* name, Slot& to, const Shape& shape) {
    return read(name, to, shape, is_compute_dtype, "f32, bf16 or f16");
  }
  bool f32(const char* name, Slot& to, const Shape& shape) {
    return read(
        name, to, shape, [](DType d) { return d == DType::f32; }, "f32");
  }
  bool integer(const char* name, Slot& to, const Shape& shape) {
    return read(
        name, to, shape, [](DType d) { return d == DType::i32 || d == DType::i64; }, "i32 or i64");
  }
  bool of(const char* name, Slot& to, const Shape& shape, DType dtype) {
    return read(
        name, to, shape, [dtype](DType d) { return d == dtype; }, name_of(dtype));
  }
  /// Elements of a quantised matrix: `columns` of `bits` each, packed into bytes.
  bool packed(const char* name, Slot& to, const Shape& rows, std::int64_t columns, const QuantScheme& scheme) {
    const ConstTensorView* view = find(name);
    if (view == nullptr) return false;
    const bool native = view->dtype == scheme.element && scheme.bits == bits_of(scheme.element);
    Shape shape = rows;
    shape.push_back(native ? columns : (columns * scheme.bits + 7) / 8);
    return read(
        name, to, shape, [&](DType d) { return d == DType::u8 || d == scheme.element; },
        "packed u8, or the element type of the quantisation key");
  }
  /// Trailing extents of 1 may be left out. `two_halves`: a scale of the whole tensor may be two, for gate and up.
  bool scale(const char* name, Slot& to, const ScaleDesc& desc, std::int64_t experts, std::int64_t rows,
             std::int64_t cols, bool two_halves = false) {
    const auto groups = [](std::int64_t extent, std::int64_t group) {
      return group <= 0 ? 1 : (extent + group - 1) / group;
    };
    const Shape full{experts, groups(rows, desc.group.rows), groups(cols, desc.group.cols)};
    const ConstTensorView* view = find(name);
    if (view == nullptr) return false;
    const Shape given(view->shape.begin(), view->shape.begin() + view->rank);
    const bool same = without_trailing_ones(given) == without_trailing_ones(full) ||
                      (two_halves && desc.group.rows < 0 && without_trailing_ones(given) == Shape{experts, 2});
    return read(
        name, to, same ? given : full,
        [&](DType d) { return d == desc.dtype || (d == DType::u8 && bits_of(desc.dtype) == 8); }, name_of(desc.dtype));
  }

  void refuse_others() const {
    for (const NamedTensor& t : file_.tensors())
      if (std::find(known_.begin(), known_.end(), t.name) == known_.end())
        fail(ErrorKind::bad_file, "{}: unknown tensor {}, expected one of the case-file format", file_.path(),
             in_quotes(t.name));
  }

  [[noreturn]] void refuse(const char* name, std::string_view expected) const {
    const ConstTensorView* view = file_.find(name);
    fail(ErrorKind::bad_file, "{}: tensor \"{}\": given {}, expected {}", file_.path(), name,
         view == nullptr ? "nothing" : to_string(*view), expected);
  }

 private:
  template <class Predicate>
  bool read(const char* name, Slot& to, const Shape& shape, Predicate is_legal, std::string_view dtypes) {
    const ConstTensorView* view = find(name);
    if (view == nullptr) return false;
    const auto dims = std::span(view->shape).first(static_cast<std::size_t>(view->rank));
    const bool same = std::equal(dims.begin(), dims.end(), shape.begin(), shape.end());
    const bool may_differ = !case_.expect_error.empty() && dims.size() == shape.size();
    if (!is_legal(view->dtype) || !(same || may_differ)) refuse(name, fmt::format("{} {}", dtypes, text_of(shape)));
    to = *view;
    return true;
  }

  const SafetensorsFile& file_;
  Case& case_;
  std::vector<std::string_view> known_;
};

void read_inputs(Reader& r, Case& c) {
  Slot hidden;
  const ConstTensorView* view = r.find("hidden_states");
  if (view == nullptr || view->rank != 2) r.refuse("hidden_states", "[M, H]");
  const std::int64_t num_tokens = view->size(0);
  r.of("hidden_states", hidden, {num_tokens, c.moe.hidden_size}, c.moe.dtype);
  c.hidden_states = *hidden;
  c.moe.max_num_tokens = std::max<std::int64_t>(num_tokens, 1);
  const std::int64_t slots = c.moe.num_slots();
  if (r.real("router_logits", c.router_logits, {num_tokens, c.moe.num_experts}))
    c.moe.router_logits_dtype = c.router_logits->dtype;
  r.integer("topk_ids", c.topk_ids, {num_tokens, slots});
  r.real("topk_weights", c.topk_weights, {num_tokens, slots});
  if (c.topk_ids.has_value() != c.topk_weights.has_value())
    r.refuse(c.topk_ids ? "topk_weights" : "topk_ids", "both of topk_ids and topk_weights, or neither");
  if (c.router_logits.has_value() == c.topk_ids.has_value())
    r.refuse("router_logits", "either router_logits, or topk_ids and topk_weights");
}

void read_matrices(Reader& r, Case& c) {
  ExpertWeights& w = c.weights.experts;
  const ConstTensorView* w13 = r.find("w13");
  if (w13 == nullptr || w13->rank != 3) r.refuse("w13", "[E_local, rows, columns]");
  const std::int64_t experts = w13->size(0);
  const bool gated = is_gated(c.moe.activation);
  const std::int64_t rows = w13_rows(gated, c.moe.intermediate_size);
  const std::int64_t width = c.moe.expert_width();
  const std::int64_t inner = c.moe.intermediate_size;
  Slot first, second;
  if (c.quant.weights == QuantKey::none) {
    r.real("w13", first, {experts, rows, width});
    c.moe.weight_dtype = first->dtype;
    r.of("w2", second, {experts, width, inner}, first->dtype);
  } else {
    const QuantScheme scheme = scheme_of(c.quant.weights);
    r.packed("w13", first, {experts, rows}, width, scheme);
    r.packed("w2", second, {experts, width}, inner, scheme);
    if (scheme.scale) {
      r.scale("w13_scale", w.w13_scale, *scheme.scale, experts, rows, width, gated);
      r.scale("w2_scale", w.w2_scale, *scheme.scale, experts, width, inner);
    }
    if (scheme.scale2) {
      r.scale("w13_global_scale", w.w13_global_scale, *scheme.scale2, experts, rows, width, gated);
      r.scale("w2_global_scale", w.w2_global_scale, *scheme.scale2, experts, width, inner);
    }
    if (!scheme.symmetric) {
      const ScaleDesc points{DType::u8, false, scheme.scale->group};
      r.scale("w13_zero_point", w.w13_zero_point, points, experts, rows, width);
      r.scale("w2_zero_point", w.w2_zero_point, points, experts, width, inner);
    }
  }
  if (!second) r.refuse("w2", "[E_local, H, I]");
  w.w13 = *first;
  w.w2 = *second;
  c.moe.has_w13_bias = r.real("w13_bias", w.w13_bias, {experts, rows});
  c.moe.has_w2_bias = r.real("w2_bias", w.w2_bias, {experts, width});
  if (c.quant.activations != QuantKey::none) {
    for (auto [name, slot] : {std::pair{"a1_scale", &w.a1_scale}, std::pair{"a2_scale", &w.a2_scale}}) {
      const ConstTensorView* view = r.find(name);
      if (view != nullptr)
        r.f32(name, *slot, view->rank == 0 ? Shape{} : view->size(0) == 1 ? Shape{1} : Shape{experts});
    }
  }
}

/// i32 [num_weight_experts]: local slot or -1. Without one, all experts are local.
void read_expert_map(Reader& r, Case& c, std::shared_ptr<Storage>& converted) {
  const std::int64_t local = c.weights.experts.num_local_experts();
  const std::int64_t experts = c.moe.num_weight_experts();
  Slot map;
  const ConstTensorView* view = r.find("expert_map");
  // Zero experts have no weights: a map that lists them too is as good.
  const bool lists_all = view != nullptr && view->rank == 1 && view->size(0) == c.moe.num_experts;
  if (!r.integer("expert_map", map, {lists_all ? c.moe.num_experts : experts})) {
    if (local != experts && c.expect_error.empty())
      r.refuse("w13", fmt::format("{} experts, or an expert_map", experts));
    return;
  }
  Tensor narrow(DType::i32, {map->size(0)});
  for (std::int64_t e = 0; e < map->size(0); ++e) {
    const std::int64_t slot = map->dtype == DType::i64 ? map->as<std::int64_t>()[e] : map->as<std::int32_t>()[e];
    if (slot < -1 || slot >= local)
      r.refuse("expert_map", fmt::format("-1 to {}, but element {} is {}", local - 1, e, slot));
    narrow.as<std::int32_t>()[e] = static_cast<std::int32_t>(slot);
  }
  converted = narrow.storage();
  c.weights.expert_map = ConstTensorView(narrow).narrow(0, 0, std::min(experts, map->size(0)));
}

void read_layer(Reader& r, bool has_bias_given, Case& c, std::shared_ptr<Storage>& bias) {
  MoeConfig& moe = c.moe;
  Slot given;
  const bool has_bias = r.real("e_score_correction_bias", given, {moe.num_experts});
  if (has_bias_given && has_bias != moe.routing.has_bias && c.router_logits)
    r.refuse("e_score_correction_bias",
             moe.routing.has_bias ? "it, as routing.has_bias says" : "none, as routing says");
  moe.routing.has_bias = has_bias;
  if (has_bias) {
    const Tensor wide = widened(*given);
    bias = wide.storage();
    c.weights.e_score_correction_bias = wide;
  }
  const ConstTensorView* shared = r.find("shared_w2");
  if (shared != nullptr && shared->rank != 2) r.refuse("shared_w2", "[H, Is]");
  const std::int64_t inner = shared == nullptr ? 0 : shared->size(1);
  moe.shared.intermediate_size = inner;
  const bool has_w13 = r.find("shared_w13") != nullptr;
  if (has_w13 != (shared != nullptr))
    r.refuse(has_w13 ? "shared_w2" : "shared_w13", "both of shared_w13 and shared_w2");
  if (has_w13) {
    r.real("shared_w2", c.weights.shared_w2, {moe.hidden_size, inner});
    r.of("shared_w13", c.weights.shared_w13, {w13_rows(is_gated(moe.activation), inner), moe.hidden_size},
         shared->dtype);
  }
  moe.shared.sigmoid_gate = r.real("shared_gate", c.weights.shared_gate, {moe.hidden_size});
  if (moe.latent_size > 0) {
    if (!r.real("latent_in", c.weights.latent_in, {moe.latent_size, moe.hidden_size})) r.refuse("latent_in", "it");
    if (!r.real("latent_out", c.weights.latent_out, {moe.hidden_size, moe.latent_size})) r.refuse("latent_out", "it");
  }
}

void read_expected(Reader& r, Case& c) {
  const std::int64_t num_tokens = c.hidden_states.size(0);
  r.real("expected", c.expected, {num_tokens, c.moe.hidden_size});
  r.integer("expected_topk_ids", c.expected_topk_ids, {num_tokens, c.moe.num_slots()});
  r.real("expected_topk_weights", c.expected_topk_weights, {num_tokens, c.moe.num_slots()});
  r.integer("expected_counts", c.expected_counts, {c.weights.experts.num_local_experts()});
}

}  // namespace

void read_case_tensors(const SafetensorsFile& file, bool has_bias_given, Case& out) {
  struct Owner {
    std::shared_ptr<const void> mapping;
    std::shared_ptr<Storage> expert_map, bias;
  };
  const auto owner = std::make_shared<Owner>(Owner{file.mapping(), nullptr, nullptr});
  Reader reader(file, out);
  read_inputs(reader, out);
  read_matrices(reader, out);
  read_expert_map(reader, out, owner->expert_map);
  read_layer(reader, has_bias_given, out, owner->bias);
  read_expected(reader, out);
  reader.refuse_others();
  out.weights.keep_alive = owner;
}

}  // namespace conclave
