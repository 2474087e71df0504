// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// How a tool stores one quantised projection, and what it becomes here. In: what a checkpoint's configuration says
// about quantisation. Out: a format: which tensors a projection consists of, and their numbers as codes and scales of a
// QuantKey (or as f32 where no key means the same).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "conclave/quantise.hpp"
#include "io/model_config.hpp"
#include "io/tensor_store.hpp"

namespace conclave {

/// One tensor of a projection; its name is that of the projection and then one of the suffixes.
struct TensorSpec {
  std::array<std::string_view, 2> suffixes;  ///< Alternatives; what the projection's ".weight" is replaced by.
  std::vector<std::int64_t> shape;           ///< Extents of 1 at the end may be missing in the file.
  std::vector<DType> dtypes;
  bool optional = false;
  bool unused = false;  ///< Known, and not part of the numbers: statistics of activations.
};

/// A projection as it was found: tensors in the order of the specs, without data where an optional one is absent.
struct StoredProjection {
  std::shared_ptr<const class WeightFormat> format;
  std::int64_t rows = 0, cols = 0;
  std::int64_t experts = 0;  ///< That lie in each of the tensors, one behind the other; 0: it is one expert's.
  std::vector<StoredTensor> tensors;
  std::vector<std::string> names;

  bool has(std::size_t spec) const noexcept { return tensors[spec].file != nullptr; }
  /// "model.safetensors: tensor "a.weight_scale"", which starts every complaint.
  std::string where(std::size_t spec) const;
};

/// A tensor that a projection is written as.
struct WrittenTensor {
  std::string suffix;
  Tensor tensor;
};

class WeightFormat {
 public:
  virtual ~WeightFormat() = default;
  /// "compressed-tensors pack-quantized"
  virtual std::string name() const = 0;
  /// What the codes mean; none: the library has no such key, and reason() says why.
  virtual QuantKey key() const = 0;
  virtual std::string reason() const { return {}; }
  /// The key whose errors are those of this format.
  virtual QuantKey error_key() const { return key(); }
  /// How the name of a projection's codes ends: ".weight_packed".
  virtual std::string_view code_suffix() const = 0;
  /// The codes come first. Throws Error for a matrix that the format cannot hold.
  virtual std::vector<TensorSpec> tensors(std::int64_t rows, std::int64_t cols) const = 0;
  /// Codes and scales of key(). Throws Error(bad_file) naming file, tensor, value and what was expected.
  virtual void read(const StoredProjection& from, const QuantMatrix& out) const = 0;
  /// The numbers, f32 [rows, cols].
  virtual void decode(const StoredProjection& from, const TensorView& out) const;
  /// The inverse of read(): what the tool would store for these codes. `scale_dtype`: of scales that are f32 here and
  /// have their values. Throws Error where there is none.
  virtual std::vector<WrittenTensor> write(const ConstQuantMatrix& from, DType scale_dtype) const;
};

/// One line of the list: null if the settings are those of another format. Throws Error for settings that are this
/// format's and that it cannot read. `settings` is the object quantization_config.
using OpenFormat = std::shared_ptr<const WeightFormat> (*)(const ModelConfig& settings);

/// The formats of safetensors checkpoints. Throws Error naming quant_method and format, and every known one.
std::shared_ptr<const WeightFormat> open_weight_format(const ModelConfig& settings);

/// f32, bf16 or f16 beside projections in codes: a format without a key, whose only tensor is the projection's.
/// `suffix` is ".weight" or nothing.
std::shared_ptr<const WeightFormat> plain_weight_format(std::string_view suffix);

}  // namespace conclave
