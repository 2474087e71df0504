// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// quant_method "awq", layout "gemm": transposed, eight outputs in a word in the order in which its kernel wants them;
// zero points the same way.
#include "base/error.hpp"
#include "io/formats/int4.hpp"
#include "io/formats/list.hpp"
#include "io/formats/numbers.hpp"

namespace conclave::formats {
namespace {

/// Which half-byte of a word, from the lowest, holds each of eight neighbours.
constexpr std::uint8_t kPlace[8] = {0, 4, 1, 5, 2, 6, 3, 7};

class Awq final : public WeightFormat {
 public:
  explicit Awq(const ModelConfig& settings) : group_size_(settings.integer({"group_size", "q_group_size"})) {
    if (settings.integer({"bits", "w_bit"}) != 4) settings.refuse("bits", "4");
    if (group_size_ == 0 || group_size_ < -1) settings.refuse("group_size", "-1 or more than 0");
    settings.expect("zero_point", {true});
    settings.expect("version", {"gemm", "GEMM"});
  }

  std::string name() const override { return "awq"; }
  std::string_view code_suffix() const override { return ".qweight"; }
  QuantKey key() const override { return int4_key(group_size_, true); }
  QuantKey error_key() const override { return group_size_ < 0 ? QuantKey::int4_channel : QuantKey::int4_group128; }
  std::string reason() const override { return fmt::format("group_size {}", group_size_); }

  std::vector<TensorSpec> tensors(std::int64_t rows, std::int64_t cols) const override {
    const std::int64_t groups = group_size_ < 0 ? 1 : cols / group_size_;
    if (rows % 8 != 0 || (group_size_ > 0 && cols % group_size_ != 0))
      fail(ErrorKind::bad_file, "given {} inputs and {} outputs, expected multiples of group_size {} and of 8", cols,
           rows, group_size_);
    return {{{".qweight"}, {cols, rows / 8}, {DType::i32}},
            {{".qzeros"}, {groups, rows / 8}, {DType::i32}},
            {{".scales"}, {groups, rows}, {DType::f16, DType::bf16, DType::f32}}};
  }

  void read(const StoredProjection& from, const QuantMatrix& out) const override { unpack(from).write(out); }
  void decode(const StoredProjection& from, const TensorView& out) const override { unpack(from).decode(out); }

 private:
  enum Spec : std::size_t { kCodes, kZeros, kScales };

  static std::uint8_t half_byte(const ConstTensorView& words, std::int64_t line, std::int64_t row) {
    const std::uint32_t word = words.as<std::uint32_t>()[line * words.size(1) + row / 8];
    return word >> (kPlace[row % 8] * 4) & 15U;
  }

  Int4Matrix unpack(const StoredProjection& from) const {
    Int4Matrix m(from.rows, from.cols, from.tensors[kScales].view.size(0));
    for (std::int64_t c = 0; c < m.cols; ++c) {
      m.group_of[static_cast<std::size_t>(c)] = group_size_ < 0 ? 0 : c / group_size_;
      for (std::int64_t r = 0; r < m.rows; ++r)
        m.codes[static_cast<std::size_t>(r * m.cols + c)] = half_byte(from.tensors[kCodes].view, c, r);
    }
    for (std::int64_t g = 0; g < m.groups; ++g)
      for (std::int64_t r = 0; r < m.rows; ++r) {
        const auto at = static_cast<std::size_t>(r * m.groups + g);
        m.scales[at] = checked_scale(from, kScales, from.tensors[kScales].view.dtype, g * m.rows + r);
        m.zeros[at] = half_byte(from.tensors[kZeros].view, g, r);
      }
    return m;
  }

  std::int64_t group_size_;
};

}  // namespace

std::shared_ptr<const WeightFormat> awq(const ModelConfig& settings) {
  if (settings.text("quant_method", "") != "awq") return nullptr;
  return std::make_shared<Awq>(settings);
}

}  // namespace conclave::formats
