// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Names -> tensors of one block. Every tensor that is taken is ticked off; what remains is reported.
#include "io/block_tensors.hpp"

#include <algorithm>
#include <set>

#include "base/error.hpp"
#include "io/formats/list.hpp"
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
    if (!tensor.block_type.empty())
      fail(ErrorKind::bad_file, "{}: tensor {}: given {}, expected f32, bf16 or f16", tensor.file->path(),
           in_quotes(full), tensor.block_type);
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

  /// A projection in the tensors that `format` gives it, or in one float tensor. `experts`: 0, or how many of them lie
  /// in each tensor, one behind the other.
  StoredProjection take_projection(const std::shared_ptr<const WeightFormat>& format, std::string_view tensor,
                                   std::int64_t rows, std::int64_t cols, std::int64_t experts) {
    StoredProjection p;
    const std::string stem = place_.prefix + std::string(projection_name(tensor));
    // Floats in the other layouts have their inputs first, codes never.
    const ExpertLayout layout = place_.experts->layout;
    const bool may_be_plain = layout != ExpertLayout::fused_transposed && layout != ExpertLayout::flat;
    p.format =
        may_be_plain && is_plain(tensor) ? plain_weight_format(tensor.substr(projection_name(tensor).size())) : format;
    if (const StoredTensor* found = store_.find(place_.prefix + std::string(tensor));
        found && !found->block_type.empty())
      p.format = blocks_of(*found, place_.prefix + std::string(tensor));
    p.rows = rows;
    p.cols = cols;
    p.experts = experts;
    for (TensorSpec& spec : specs_of(*p.format, stem, rows, cols)) {
      if (experts > 0) spec.shape.insert(spec.shape.begin(), experts);
      p.names.push_back(stem);
      p.tensors.push_back(take_spec(spec, p.names.back()));
    }
    return p;
  }

  /// Is the tensor there, as floats?
  bool is_plain(std::string_view tensor) const {
    const StoredTensor* found = store_.find(place_.prefix + std::string(tensor));
    return found != nullptr && found->block_type.empty() && is_compute_dtype(found->view.dtype);
  }

  bool are_plain_alike(std::initializer_list<std::string_view> tensors) const {
    std::set<DType> dtypes;
    for (std::string_view name : tensors) {
      if (!is_plain(name)) return false;
      dtypes.insert(store_.find(place_.prefix + std::string(name))->view.dtype);
    }
    return dtypes.size() == 1;
  }

  static std::shared_ptr<const WeightFormat> blocks_of(const StoredTensor& found, const std::string& name) {
    auto format = formats::gguf_blocks(found.block_type);
    if (format == nullptr)
      fail(ErrorKind::bad_file, "{}: tensor {}: given {}, expected F32, F16, BF16, Q8_0, Q4_0 or MXFP4",
           found.file->path(), in_quotes(name), found.block_type);
    return format;
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
  std::vector<TensorSpec> specs_of(const WeightFormat& format, const std::string& stem, std::int64_t rows,
                                   std::int64_t cols) const {
    try {
      return format.tensors(rows, cols);
    } catch (const Error& error) {
      fail(ErrorKind::bad_file, "{}: {}: {}", store_.path(), stem, error.what());
    }
  }

  /// `name` begins as the projection's and becomes the tensor's.
  StoredTensor take_spec(const TensorSpec& spec, std::string& name) {
    const std::string stem = name;
    const StoredTensor* found = nullptr;
    for (std::size_t i = 0; i < 2 && found == nullptr && (i == 0 || !spec.suffixes[i].empty()); ++i) {
      name = stem + std::string(spec.suffixes[i]);
      found = store_.find(name);
    }
    if (found == nullptr) {
      name = stem + std::string(spec.suffixes[0]);
      if (spec.optional) return {};
      fail(ErrorKind::bad_file, "{}: tensor {} is missing, expected shape {}", store_.path(), in_quotes(name),
           expected_text(spec.shape));
    }
    left_.erase(name);
    bytes_ += found->view.bytes();
    ++count_;
    if (!spec.unused) check_spec(spec, *found, name);
    return *found;
  }

  static void check_spec(const TensorSpec& spec, const StoredTensor& found, const std::string& name) {
    const ConstTensorView& v = found.view;
    const auto without_ones = [](Shape shape) {
      while (!shape.empty() && shape.back() == 1) shape.pop_back();
      return shape;
    };
    if (without_ones({v.shape.begin(), v.shape.begin() + v.rank}) != without_ones(spec.shape))
      fail(ErrorKind::bad_file, "{}: tensor {}: given {}, expected shape {}", found.file->path(), in_quotes(name),
           to_string(v), expected_text(spec.shape));
    if (std::find(spec.dtypes.begin(), spec.dtypes.end(), v.dtype) == spec.dtypes.end()) {
      std::string known;
      for (DType dtype : spec.dtypes) known += (known.empty() ? "" : " or ") + std::string(name_of(dtype));
      fail(ErrorKind::bad_file, "{}: tensor {}: given {}, expected {}", found.file->path(), in_quotes(name),
           to_string(v), known);
    }
  }

  std::optional<DType> dtype_;
  std::int64_t bytes_ = 0;
  std::int64_t count_ = 0;
};

std::string numbered(std::string_view pattern, std::int64_t expert) {
  std::string name(pattern);
  const std::size_t hole = name.find("{}");
  if (hole != std::string::npos) name.replace(hole, 2, std::to_string(expert));
  return name;
}

/// The public implementation of LongCat allots first matrices to its zero experts as well, saves and never reads them.
void ignore_zero_experts(Resolver& from, const ExpertNames& names, const MoeConfig& moe) {
  for (std::int64_t e = moe.num_weight_experts(); e < moe.num_experts; ++e)
    for (std::string_view name : {names.gate, names.up}) from.ignore(numbered(name, e));
}

void take_each(Resolver& from, const ExpertNames& names, const MoeConfig& moe, BlockTensors& out) {
  const std::int64_t width = moe.expert_width();
  const std::int64_t inner = moe.intermediate_size;
  for (std::int64_t e = 0; e < moe.num_weight_experts(); ++e) {
    if (!names.gate.empty()) out.gate.push_back(from.take_matrix(numbered(names.gate, e), {inner, width}));
    out.up.push_back(from.take_matrix(numbered(names.up, e), {inner, width}));
    out.down.push_back(from.take_matrix(numbered(names.down, e), {width, inner}));
  }
  ignore_zero_experts(from, names, moe);
}

void take_biases(Resolver& from, const ExpertNames& names, const MoeConfig& moe, BlockTensors& out) {
  const std::int64_t experts = moe.num_weight_experts();
  const std::int64_t rows = w13_rows(is_gated(moe.activation), moe.intermediate_size);
  const bool apart = !names.up_bias.empty();
  if (moe.has_w13_bias) out.w13_bias = from.take(names.w13_bias, {experts, apart ? moe.intermediate_size : rows});
  if (moe.has_w13_bias && apart) out.up_bias = from.take(names.up_bias, {experts, moe.intermediate_size});
  if (moe.has_w2_bias) out.w2_bias = from.take(names.w2_bias, {experts, moe.expert_width()});
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
  if (names.layout == ExpertLayout::stacked) {
    out.gate.push_back(from.take_matrix(names.gate, {experts, inner, width}));
    out.up.push_back(from.take_matrix(names.up, {experts, inner, width}));
    out.down.push_back(from.take_matrix(names.down, {experts, width, inner}));
    return take_biases(from, names, moe, out);
  }
  const std::string_view first = names.gate.empty() ? names.up : names.gate;
  out.up.push_back(from.take_matrix(first, transposed ? Shape{experts, width, rows} : Shape{experts, rows, width}));
  out.down.push_back(
      from.take_matrix(names.down, transposed ? Shape{experts, inner, width} : Shape{experts, width, inner}));
  take_biases(from, names, moe, out);
}

void take_coded(Resolver& from, const std::shared_ptr<const WeightFormat>& format, const ExpertNames& names,
                const MoeConfig& moe, BlockTensors& out) {
  const std::int64_t width = moe.expert_width();
  const std::int64_t inner = moe.intermediate_size;
  const std::int64_t experts = moe.num_weight_experts();
  if (names.layout == ExpertLayout::each) {
    for (std::int64_t e = 0; e < experts; ++e) {
      if (!names.gate.empty())
        out.coded.gate.push_back(from.take_projection(format, numbered(names.gate, e), inner, width, 0));
      out.coded.up.push_back(from.take_projection(format, numbered(names.up, e), inner, width, 0));
      out.coded.down.push_back(from.take_projection(format, numbered(names.down, e), width, inner, 0));
    }
    ignore_zero_experts(from, names, moe);
    return;
  }
  const bool gated = is_gated(moe.activation);
  const bool together = names.up.empty() || names.gate.empty();
  if (!together) out.coded.gate.push_back(from.take_projection(format, names.gate, inner, width, experts));
  out.coded.up.push_back(from.take_projection(format, names.up.empty() ? names.gate : names.up,
                                              together ? w13_rows(gated, inner) : inner, width, experts));
  out.coded.down.push_back(from.take_projection(format, names.down, width, inner, experts));
  take_biases(from, names, moe, out);
}

/// The key that all routed experts can be handed out in, or none and why.
void choose_key(const MoeConfig& moe, BlockTensors& out) {
  out.key = out.coded.up[0].format->key();
  for (const auto* part : {&out.coded.gate, &out.coded.up, &out.coded.down})
    for (const StoredProjection& p : *part) {
      if (p.format->key() == QuantKey::none)
        out.decoded_because = p.format->reason();
      else if (p.format->key() != out.key)
        out.decoded_because = "the projections have different formats";
    }
  if (out.key == QuantKey::fp8_block128 && !out.coded.gate.empty() && moe.intermediate_size % 128 != 0)
    out.decoded_because = fmt::format(
        "gate and up have blocks of 128 rows each, which intermediate_size {} does not fill", moe.intermediate_size);
  if (!out.decoded_because.empty()) out.key = QuantKey::none;
}

/// GGUF files may also have floats of several types in one block, which no kernel takes: those are decoded as codes
/// are.
bool has_coded_experts(const Resolver& from, const ExpertNames& names) {
  if (names.layout == ExpertLayout::stacked) return !from.are_plain_alike({names.gate, names.up, names.down});
  return !from.is_plain(numbered(names.up.empty() ? names.gate : names.up, 0));
}

bool is_all_zero(const ConstTensorView& view) {
  const auto* bytes = view.as<std::uint8_t>();
  return std::all_of(bytes, bytes + view.bytes(), [](std::uint8_t byte) { return byte == 0; });
}

/// A zero point, an order of columns or a bias that the settings do not announce would change the numbers. Zeros would
/// not, and what is said of inputs and outputs is about activations.
void refuse_unread_parts(const BlockTensors& out, const TensorStore& store) {
  for (const std::string& name : out.not_understood) {
    const std::size_t dot = name.rfind('.');
    const std::string_view projection = std::string_view(name).substr(0, dot);
    const std::string_view part = std::string_view(name).substr(dot + 1);
    for (const auto* projections : {&out.coded.gate, &out.coded.up, &out.coded.down})
      for (const StoredProjection& p : *projections) {
        if (!p.names[0].starts_with(projection) || p.names[0].size() <= dot || p.names[0][dot] != '.') continue;
        const StoredTensor& tensor = *store.find(name);
        if (part.starts_with("input_") || part.starts_with("output_") || is_all_zero(tensor.view)) continue;
        fail(ErrorKind::bad_file, "{}: tensor {}: given {}, expected none beside the codes of {}", tensor.file->path(),
             in_quotes(name), to_string(tensor.view), p.format->name());
      }
  }
}

bool has_coded_shared(const Resolver& from, const Family& family, const MoeConfig& moe) {
  if (moe.shared.intermediate_size == 0) return false;
  const std::string prefix(family.shared);
  return !(from.is_plain(prefix + std::string(family.shared_parts[0])) || !is_gated(moe.activation)) ||
         !from.is_plain(prefix + std::string(family.shared_parts[1])) ||
         !from.is_plain(prefix + std::string(family.shared_parts[2]));
}

void take_coded_shared(Resolver& from, const std::shared_ptr<const WeightFormat>& format, const Family& family,
                       const MoeConfig& moe, BlockTensors& out) {
  const std::int64_t inner = moe.shared.intermediate_size;
  const std::int64_t width = moe.hidden_size;
  const std::string prefix(family.shared);
  if (is_gated(moe.activation))
    out.coded_shared.gate.push_back(
        from.take_projection(format, prefix + std::string(family.shared_parts[0]), inner, width, 0));
  out.coded_shared.up.push_back(
      from.take_projection(format, prefix + std::string(family.shared_parts[1]), inner, width, 0));
  out.coded_shared.down.push_back(
      from.take_projection(format, prefix + std::string(family.shared_parts[2]), width, inner, 0));
  if (moe.shared.sigmoid_gate) out.shared_gate = from.take(family.shared_gate, {width});
}

void take_shared(Resolver& from, const Family& family, const MoeConfig& moe, BlockTensors& out) {
  const std::int64_t inner = moe.shared.intermediate_size;
  const std::int64_t width = moe.hidden_size;
  if (inner == 0) return;
  const std::string prefix(family.shared);
  if (is_gated(moe.activation))
    out.shared_gate_proj = from.take_matrix(prefix + std::string(family.shared_parts[0]), {inner, width});
  out.shared_up_proj = from.take_matrix(prefix + std::string(family.shared_parts[1]), {inner, width});
  out.shared_down_proj = from.take_matrix(prefix + std::string(family.shared_parts[2]), {width, inner});
  if (moe.shared.sigmoid_gate) out.shared_gate = from.take(family.shared_gate, {width});
}

/// An expert beyond the config's count means that the two files do not belong together.
void refuse_more_experts(const BlockPlace& place, const MoeConfig& moe, const TensorStore& store,
                         const std::vector<std::string>& left) {
  if (place.experts->layout != ExpertLayout::each) return;
  const std::string up = numbered(place.experts->up, moe.num_weight_experts());
  const std::string next = place.prefix + std::string(projection_name(up)) + ".";
  for (const std::string& name : left)
    if (name.starts_with(next))
      fail(ErrorKind::bad_file, "{}: tensor {}: given more experts, expected {} as in config.json",
           store.find(name)->file->path(), in_quotes(name), moe.num_weight_experts());
}

}  // namespace

std::string_view projection_name(std::string_view tensor) noexcept {
  constexpr std::string_view kEnd = ".weight";
  return tensor.ends_with(kEnd) ? tensor.substr(0, tensor.size() - kEnd.size()) : tensor;
}

BlockTensors resolve_block(const Family& family, const BlockPlace& place, const MoeConfig& moe,
                           const TensorStore& store, const std::shared_ptr<const WeightFormat>& format) {
  Resolver from(place, store);
  BlockTensors out;
  const ExpertNames& names = *place.experts;
  out.layout = names.layout;
  const bool coded_shared = format != nullptr && has_coded_shared(from, family, moe);
  const bool coded = coded_shared || (format != nullptr && has_coded_experts(from, names));
  if (coded)
    take_coded(from, format, names, moe, out);
  else if (out.layout == ExpertLayout::each)
    take_each(from, *place.experts, moe, out);
  else
    take_together(from, *place.experts, moe, out);
  out.router = from.take_any(family.router, {moe.num_experts, moe.hidden_size});
  if (!family.router_bias.empty()) out.router_bias = from.take(family.router_bias, {moe.num_experts});
  if (moe.routing.has_bias) out.correction_bias = from.take_any(family.correction_bias, {moe.num_experts});
  if (coded_shared)
    take_coded_shared(from, format, family, moe, out);
  else
    take_shared(from, family, moe, out);
  if (moe.latent_size > 0) {
    out.latent_in = from.take_matrix(family.latent_in, {moe.latent_size, moe.hidden_size});
    out.latent_out = from.take_matrix(family.latent_out, {moe.hidden_size, moe.latent_size});
  }
  from.finish(out);
  if (coded) choose_key(moe, out);
  if (coded) refuse_unread_parts(out, store);
  // The kernels take shared and routed matrices of one type.
  if (coded_shared || (coded && out.key == QuantKey::none)) out.dtype = DType::f32;
  refuse_more_experts(place, moe, store, out.not_understood);
  return out;
}

}  // namespace conclave
