// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// GGUF: 32 neighbours of a row and their scale in one block, the scale first. In 4-bit blocks, the low halves of the 16
// bytes are the first 16 neighbours and the high halves the others.
#include <array>
#include <cmath>

#include "base/error.hpp"
#include "io/formats/list.hpp"
#include "io/formats/numbers.hpp"

namespace conclave::formats {
namespace {

constexpr std::int64_t kBlock = 32;

/// A type of blocks that has a reader.
struct BlockType {
  std::string_view name;
  QuantKey key;        ///< none: no key has groups of 32
  QuantKey error_key;  ///< Whose errors it has.
  std::int64_t bytes;
  DType scale;
};
constexpr std::array<BlockType, 3> kTypes{
    {{"Q8_0", QuantKey::none, QuantKey::int8_channel, 34, DType::f16},
     {"Q4_0", QuantKey::int4_group32_zp, QuantKey::int4_group32_zp, 18, DType::f16},
     {"MXFP4", QuantKey::mxfp4, QuantKey::mxfp4, 17, DType::e8m0}}};

class Blocks final : public WeightFormat {
 public:
  explicit Blocks(const BlockType& type) : type_(type) {}

  std::string name() const override { return "GGUF " + std::string(type_.name); }
  std::string_view code_suffix() const override { return ".weight"; }
  QuantKey key() const override { return type_.key; }
  QuantKey error_key() const override { return type_.error_key; }
  std::string reason() const override { return std::string(type_.name) + " has 8-bit codes in groups of 32"; }

  std::vector<TensorSpec> tensors(std::int64_t rows, std::int64_t cols) const override {
    if (cols % kBlock != 0)
      fail(ErrorKind::bad_file, "given {} columns, expected a multiple of {} ({})", cols, kBlock, type_.name);
    return {{{".weight"}, {rows, cols / kBlock * type_.bytes}, {DType::u8}}};
  }

  void read(const StoredProjection& from, const QuantMatrix& out) const override {
    for_each_block(from, [&](const std::uint8_t* block, std::int64_t r, std::int64_t g, float scale) {
      // Q4_0 counts from its largest number, whatever the sign: 8 steps of a negative scale are as many as no symmetric
      // code has of a positive one. Codes from the other end, with a zero point of 7, are the same numbers.
      const bool negative = type_.scale == DType::f16 && std::signbit(scale);
      const std::int64_t at = r * out.scale.stride(0) + g * out.scale.stride(1);
      if (type_.scale == DType::f16) {
        out.scale.as<float>()[at] = std::fabs(scale);
        out.zero_point.as<std::uint8_t>()[r * out.zero_point.stride(0) + g * out.zero_point.stride(1)] =
            negative ? 7 : 8;
      } else {
        out.scale.as<std::uint8_t>()[at] = block[0];
      }
      const std::uint8_t flip = negative ? 0xFF : 0;
      const std::uint8_t* halves = block + type_.bytes - kBlock / 2;
      std::uint8_t* bytes = out.elements.as<std::uint8_t>() + r * out.elements.stride(0) + g * (kBlock / 2);
      for (int i = 0; i < 8; ++i) {
        bytes[i] = static_cast<std::uint8_t>(((halves[2 * i] & 15) | (halves[2 * i + 1] & 15) << 4) ^ flip);
        bytes[i + 8] = static_cast<std::uint8_t>((halves[2 * i] >> 4 | (halves[2 * i + 1] & 0xF0)) ^ flip);
      }
    });
  }

  void decode(const StoredProjection& from, const TensorView& out) const override {
    if (type_.key != QuantKey::none) return WeightFormat::decode(from, out);
    for_each_block(from, [&](const std::uint8_t* block, std::int64_t r, std::int64_t g, float scale) {
      float* numbers = out.as<float>() + r * out.stride(0) + g * kBlock;
      for (std::int64_t i = 0; i < kBlock; ++i)
        numbers[i] = static_cast<float>(static_cast<std::int8_t>(block[2 + i])) * scale;
    });
  }

 private:
  template <class F>
  void for_each_block(const StoredProjection& from, F&& f) const {
    const std::int64_t groups = from.cols / kBlock;
    const auto* data = from.tensors[0].view.as<std::uint8_t>();
    for (std::int64_t r = 0; r < from.rows; ++r)
      for (std::int64_t g = 0; g < groups; ++g) {
        const std::uint8_t* block = data + (r * groups + g) * type_.bytes;
        // The scale of a block may lie at an odd address.
        alignas(2) std::uint8_t bytes[2] = {block[0], block[1]};
        f(block, r, g, checked(from, bytes, r, g));
      }
  }

  float checked(const StoredProjection& from, const std::uint8_t* bytes, std::int64_t r, std::int64_t g) const {
    const float value = number_at(ConstTensorView(bytes, type_.scale, {1}), type_.scale, 0);
    if (!std::isfinite(value)) [[unlikely]]
      fail(ErrorKind::bad_file, "{}: row {}, block {}: given scale {}, expected a finite one", from.where(0), r, g,
           value);
    return value;
  }

  BlockType type_;
};

}  // namespace

std::shared_ptr<const WeightFormat> gguf_blocks(std::string_view block_type) {
  for (const BlockType& type : kTypes)
    if (type.name == block_type) return std::make_shared<Blocks>(type);
  return nullptr;
}

}  // namespace conclave::formats
