// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Descriptors for the copy engine: a dense tensor of 16-bit elements and the box that one copy moves.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "conclave/dtype.hpp"

namespace conclave::cuda {

/// Rows [outer, rows, columns] at `data`, rows `row_stride` elements apart and slices rows * row_stride. Boxes of
/// {1, box_rows, 64}: 128 bytes of a row, swizzled by 128 bytes in shared memory. Elements outside come as zeros.
/// Throws Error if `data` is not aligned to 16 bytes, a row is not a multiple of 16 bytes, or the driver refuses.
CUtensorMap tensor_map_3d(const void* data, DType dtype, std::int64_t outer, std::int64_t rows, std::int64_t columns,
                          std::int64_t row_stride, int box_rows);

/// The same for one matrix.
CUtensorMap tensor_map_2d(const void* data, DType dtype, std::int64_t rows, std::int64_t columns,
                          std::int64_t row_stride, int box_rows);

}  // namespace conclave::cuda
