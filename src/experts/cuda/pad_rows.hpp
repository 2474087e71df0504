// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: rows of 16-bit elements at any address and stride. Out: the same rows, padded with zeros to a width whose rows
// begin at multiples of 16 bytes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace conclave::experts::cuda {

struct PadRows {
  const void* from = nullptr;
  std::int64_t from_stride = 0;  ///< In elements.
  void* to = nullptr;            ///< [rows, width], dense
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t width = 0;  ///< A multiple of 8.
};

void pad_rows(const PadRows& work, cudaStream_t stream);

}  // namespace conclave::experts::cuda
