// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Quantised matrices that own their memory, and what the tests of several files do with them.
#pragma once

#include <string>
#include <vector>

#include "conclave/quantise.hpp"
#include "support/tensors.hpp"

namespace conclave::test {

struct OwnedMatrix {
  Tensor elements, scale, global_scale, zero_point;
  QuantMatrix view;

  ConstQuantMatrix read() const {
    return {view.key, view.role, view.rows, view.cols, view.elements, view.scale, view.global_scale, view.zero_point};
  }
};

/// Poisoned: whatever an encoder leaves out shows.
inline OwnedMatrix empty_matrix(QuantKey key, std::int64_t rows, std::int64_t cols,
                                QuantRole role = QuantRole::weights) {
  const QuantShapes s = shapes_of(key, rows, cols, role);
  const auto make = [](const MatrixShape& m) { return poisoned_tensor(m.dtype, {m.rows, m.cols}); };
  OwnedMatrix o{make(s.elements), make(s.scale), {}, {}, {key, role, rows, cols, {}, {}, {}, {}}};
  if (s.global_scale) o.global_scale = make(*s.global_scale);
  if (s.zero_point) o.zero_point = make(*s.zero_point);
  o.view.elements = o.elements;
  o.view.scale = o.scale;
  if (s.global_scale) o.view.global_scale = o.global_scale;
  if (s.zero_point) o.view.zero_point = o.zero_point;
  return o;
}

inline OwnedMatrix quantised(QuantKey key, const ConstTensorView& x, QuantRole role = QuantRole::weights) {
  OwnedMatrix o = empty_matrix(key, x.size(0), x.size(1), role);
  quantise(x, o.view);
  return o;
}

inline std::vector<float> dequantised(const ConstQuantMatrix& m) {
  std::vector<float> out(static_cast<std::size_t>(m.rows * m.cols));
  dequantise(m, TensorView(out.data(), DType::f32, {m.rows, m.cols}));
  return out;
}
inline std::vector<float> dequantised(const OwnedMatrix& m) {
  return dequantised(m.read());
}

inline std::vector<int> bytes_of_tensor(const ConstTensorView& t) {
  const auto* p = t.as<std::uint8_t>();
  return {p, p + t.bytes()};
}

/// Every key and role that a matrix can have, `none` left out.
struct KeyAndRole {
  QuantKey key;
  QuantRole role;
};
inline std::vector<KeyAndRole> all_formats() {
  std::vector<KeyAndRole> list;
  for (QuantKey key : all_quant_keys())
    if (key != QuantKey::none) list.push_back({key, QuantRole::weights});
  list.push_back({QuantKey::fp8_block128, QuantRole::activations});
  return list;
}

inline std::string text_of(KeyAndRole f) {
  return std::string(name_of(f.key)) + (f.role == QuantRole::weights ? "" : " activations");
}

}  // namespace conclave::test
