// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: one expert's matrix as a checkpoint has it, on the device. Out: its rows in the order of the kernels, padded with
// zeros; and biases as f32 in the same order.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "conclave/activation.hpp"
#include "conclave/dtype.hpp"

namespace conclave::experts::cuda {

struct PackRows {
  const void* from = nullptr;
  DType from_dtype = DType::bf16;  ///< f32, bf16 or f16.
  std::int64_t from_stride = 0;    ///< Elements from row to row.
  void* to = nullptr;              ///< [rows, columns], dense
  DType to_dtype = DType::bf16;    ///< f32, bf16 or f16.
  std::int64_t rows = 0;           ///< Padded.
  std::int64_t columns = 0;        ///< Padded.
  std::int64_t from_rows = 0;      ///< Of the source: intermediate_size where gated is set, else all.
  std::int64_t from_columns = 0;
  bool gated = false;  ///< Rows become groups of 8 gate, 8 up.
  W13Layout layout = W13Layout::gate_up;
};

void pack_rows(const PackRows& work, cudaStream_t stream);

}  // namespace conclave::experts::cuda
