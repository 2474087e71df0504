// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// quant_method "gptq": transposed, eight inputs in a word; zero points eight outputs in a word; and, with activation
// order, a group for each input in any order, which no key of the library expresses: then the numbers are decoded.
#include "base/error.hpp"
#include "io/formats/int4.hpp"
#include "io/formats/list.hpp"
#include "io/formats/numbers.hpp"

namespace conclave::formats {
namespace {

class Gptq final : public WeightFormat {
 public:
  explicit Gptq(const ModelConfig& settings)
      : group_size_(settings.integer({"group_size"})),
        symmetric_(settings.boolean("sym", true)),
        any_order_(settings.boolean("desc_act", false)) {
    if (settings.integer({"bits"}) != 4) settings.refuse("bits", "4");
    if (group_size_ == 0 || group_size_ < -1) settings.refuse("group_size", "-1 or more than 0");
    // The first version of the format stores each zero point less one.
    const std::string version = settings.text("checkpoint_format", "gptq");
    if (version != "gptq" && version != "gptq_v2") settings.refuse("checkpoint_format", "gptq or gptq_v2");
    zero_offset_ = version == "gptq" ? 1 : 0;
  }

  std::string name() const override { return zero_offset_ == 1 ? "gptq" : "gptq_v2"; }
  std::string_view code_suffix() const override { return ".qweight"; }
  QuantKey key() const override { return any_order_ ? QuantKey::none : int4_key(group_size_, !symmetric_); }
  QuantKey error_key() const override { return group_size_ < 0 ? QuantKey::int4_channel : QuantKey::int4_group128; }
  std::string reason() const override {
    if (any_order_) return "desc_act: inputs belong to groups in any order";
    return fmt::format("group_size {}", group_size_);
  }

  std::vector<TensorSpec> tensors(std::int64_t rows, std::int64_t cols) const override {
    const std::int64_t groups = group_size_ < 0 ? 1 : cols / group_size_;
    if (rows % 8 != 0 || cols % 8 != 0 || (group_size_ > 0 && cols % group_size_ != 0))
      fail(ErrorKind::bad_file, "given {} inputs and {} outputs, expected multiples of 8 and of group_size {}", cols,
           rows, group_size_);
    return {{{".qweight"}, {cols / 8, rows}, {DType::i32}},
            {{".qzeros"}, {groups, rows / 8}, {DType::i32}},
            {{".scales"}, {groups, rows}, {DType::f16, DType::bf16, DType::f32}},
            {{".g_idx"}, {cols}, {DType::i32}, !any_order_}};
  }

  void read(const StoredProjection& from, const QuantMatrix& out) const override { unpack(from).write(out); }
  void decode(const StoredProjection& from, const TensorView& out) const override { unpack(from).decode(out); }

 private:
  enum Spec : std::size_t { kCodes, kZeros, kScales, kGroupIndex };

  Int4Matrix unpack(const StoredProjection& from) const {
    Int4Matrix m(from.rows, from.cols, from.tensors[kScales].view.size(0));
    const auto* words = from.tensors[kCodes].view.as<std::uint32_t>();
    for (std::int64_t c = 0; c < m.cols; ++c)
      for (std::int64_t r = 0; r < m.rows; ++r)
        m.codes[static_cast<std::size_t>(r * m.cols + c)] = words[c / 8 * m.rows + r] >> (c % 8 * 4) & 15U;
    for (std::int64_t g = 0; g < m.groups; ++g)
      for (std::int64_t r = 0; r < m.rows; ++r) {
        const auto at = static_cast<std::size_t>(r * m.groups + g);
        m.scales[at] = checked_scale(from, kScales, from.tensors[kScales].view.dtype, g * m.rows + r);
        m.zeros[at] = zero_point(from, g, r);
      }
    for (std::int64_t c = 0; c < m.cols; ++c) m.group_of[static_cast<std::size_t>(c)] = group_of(from, c, m.groups);
    return m;
  }

  std::uint8_t zero_point(const StoredProjection& from, std::int64_t group, std::int64_t row) const {
    const auto* words = from.tensors[kZeros].view.as<std::uint32_t>();
    const std::uint32_t stored = words[group * (from.rows / 8) + row / 8] >> (row % 8 * 4) & 15U;
    // Readers disagree about 15 + 1: some take it for 16 and others for 0.
    if (stored + zero_offset_ > 15)
      fail(ErrorKind::bad_file, "{}: group {}, output {}: given 15, expected 0 to 14: the zero point is one more",
           from.where(kZeros), group, row);
    const auto zero = static_cast<std::uint8_t>(stored + zero_offset_);
    if (symmetric_ && zero != 8)
      fail(ErrorKind::bad_file, "{}: group {}, output {}: given zero point {}, expected 8: sym is true",
           from.where(kZeros), group, row, zero);
    return zero;
  }

  std::int64_t group_of(const StoredProjection& from, std::int64_t c, std::int64_t groups) const {
    const std::int64_t in_order = group_size_ < 0 ? 0 : c / group_size_;
    if (!from.has(kGroupIndex)) return in_order;
    const std::int64_t given = from.tensors[kGroupIndex].view.as<std::int32_t>()[c];
    if (given < 0 || given >= groups || (!any_order_ && given != in_order))
      fail(ErrorKind::bad_file, "{}: input {}: given {}, expected {}", from.where(kGroupIndex), c, given,
           any_order_ ? fmt::format("0 to {}", groups - 1) : fmt::format("{}: desc_act is false", in_order));
    return given;
  }

  std::int64_t group_size_;
  bool symmetric_, any_order_;
  std::uint32_t zero_offset_ = 0;
};

}  // namespace

std::shared_ptr<const WeightFormat> gptq(const ModelConfig& settings) {
  if (settings.text("quant_method", "") != "gptq") return nullptr;
  return std::make_shared<Gptq>(settings);
}

}  // namespace conclave::formats
