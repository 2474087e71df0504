// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Each projection is read into its rows of its expert. A scale of a whole tensor is one for each projection: gate and
// up keep their own.
#include "io/load_codes.hpp"

#include "base/error.hpp"

namespace conclave {
namespace {

/// Expert `e` of projections that are one element each, or one for all.
StoredProjection projection_of(const std::vector<StoredProjection>& all, std::int64_t e) {
  if (all[0].experts == 0) return all[static_cast<std::size_t>(e)];
  StoredProjection s = all[0];
  for (StoredTensor& t : s.tensors)
    if (t.file != nullptr && t.view.rank > 0) t.view = t.view.at(e);
  return s;
}

void give_up(const StoredProjection& p) {
  for (const StoredTensor& t : p.tensors)
    if (t.file != nullptr) t.file->give_up(t.view.data, t.view.bytes());
}

class Loader {
 public:
  Loader(QuantKey key, std::int64_t experts, std::int64_t parts, std::int64_t rows, std::int64_t cols)
      : key_(key), rows_(rows), cols_(cols) {
    if (key == QuantKey::none) {
      out_.elements = Tensor(DType::f32, {experts, parts * rows, cols});
      return;
    }
    one_ = shapes_of(key, rows, cols);
    const auto all = [&](const MatrixShape& s) { return Tensor(s.dtype, {experts, parts * s.rows, s.cols}); };
    out_.elements = all(one_.elements);
    out_.scale = all(one_.scale);
    if (one_.global_scale) out_.global_scale = all(*one_.global_scale);
    if (one_.zero_point) out_.zero_point = all(*one_.zero_point);
  }

  void read(const StoredProjection& p, std::int64_t e, std::int64_t part) {
    if (key_ == QuantKey::none) return p.format->decode(p, out_.elements.view().at(e).narrow(0, part * rows_, rows_));
    const auto rows_of = [&](const Tensor& tensor, const MatrixShape& s) {
      return tensor.view().at(e).narrow(0, part * s.rows, s.rows);
    };
    QuantMatrix m{key_,
                  QuantRole::weights,
                  rows_,
                  cols_,
                  rows_of(out_.elements, one_.elements),
                  rows_of(*out_.scale, one_.scale),
                  {},
                  {}};
    if (one_.global_scale) m.global_scale = rows_of(*out_.global_scale, *one_.global_scale);
    if (one_.zero_point) m.zero_point = rows_of(*out_.zero_point, *one_.zero_point);
    p.format->read(p, m);
  }

  CodedMatrices take() { return std::move(out_); }

 private:
  QuantKey key_;
  std::int64_t rows_, cols_;
  QuantShapes one_;
  CodedMatrices out_;
};

}  // namespace

CodedMatrices load_codes(const std::vector<StoredProjection>& gate, const std::vector<StoredProjection>& up,
                         std::int64_t experts, QuantKey key) {
  const std::int64_t parts = gate.empty() ? 1 : 2;
  Loader loader(key, experts, parts, up[0].rows, up[0].cols);
  for (std::int64_t e = 0; e < experts; ++e)
    for (std::int64_t part = 0; part < parts; ++part) {
      const StoredProjection p = projection_of(parts == 2 && part == 0 ? gate : up, e);
      loader.read(p, e, part);
      give_up(p);
    }
  return loader.take();
}

}  // namespace conclave
