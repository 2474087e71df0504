// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a checkpoint of tests/data/formats and its expected output. Out: the error of its first block, computed in double
// precision from what was loaded, codes decoded.
#pragma once

#include <cmath>
#include <cstring>
#include <string>

#include "conclave/checkpoint.hpp"
#include "conclave/quantise.hpp"
#include "conclave/safetensors.hpp"
#include "io/plain_layer.hpp"
#include "quant/expert_matrices.hpp"

namespace conclave::test {

inline std::string format_folder(const std::string& name) {
  return std::string(CONCLAVE_SOURCE_DIR "/tests/data/formats/").append(name);
}

/// f32 [E, rows, cols]
inline Tensor decoded(const MoeConfig& moe, QuantKey key, const ExpertWeights& w, bool first) {
  const std::int64_t rows = first ? w13_rows(is_gated(moe.activation), moe.intermediate_size) : moe.expert_width();
  const std::int64_t cols = first ? moe.expert_width() : moe.intermediate_size;
  const Tensor out(DType::f32, {w.num_local_experts(), rows, cols});
  for (std::int64_t e = 0; e < w.num_local_experts(); ++e)
    for (const quant::ExpertMatrix& m :
         first ? quant::w13_matrices(moe, key, w, e) : quant::w2_matrices(moe, key, w, e)) {
      const Tensor part(DType::f32, {m.matrix.rows, cols});
      dequantise(m.matrix, part);
      for (std::int64_t r = 0; r < m.matrix.rows; ++r)
        std::memcpy(out.view().at(e).at(m.first_row + r * m.row_step).data, part.view().at(r).data,
                    static_cast<std::size_t>(cols) * sizeof(float));
    }
  return out;
}

/// Relative to the norm of the output.
inline double block_error(const Checkpoint& checkpoint, const std::string& io_path) {
  const BlockInfo& block = checkpoint.blocks()[0];
  LayerWeights weights = checkpoint.load(block.name);
  Tensor w13, w2;
  if (block.quant.weights != QuantKey::none) {
    w13 = decoded(block.config, block.quant.weights, weights.experts, true);
    w2 = decoded(block.config, block.quant.weights, weights.experts, false);
    weights.experts.w13 = w13;
    weights.experts.w2 = w2;
  }
  const SafetensorsFile io(io_path);
  const ConstTensorView input = io.get(block.name + ".input");
  const PlainResult found =
      plain_layer(block.config, weights, input.as<float>(), input.numel() / block.config.hidden_size);
  const auto* expected = io.get(block.name + ".output").as<float>();
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < found.output.size(); ++i) {
    difference += std::pow(found.output[i] - expected[i], 2);
    norm += std::pow(expected[i], 2);
  }
  return std::sqrt(difference / norm);
}

}  // namespace conclave::test
