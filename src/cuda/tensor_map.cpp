// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// tensor_map.hpp through the driver's encoder, found at run time so that nothing links to the driver.
#include "cuda/tensor_map.hpp"

#include <cuda_runtime_api.h>

#include <array>

#include "base/error.hpp"
#include "cuda/check.hpp"

namespace conclave::cuda {
namespace {

using Encode = decltype(cuTensorMapEncodeTiled)*;

/// 128 bytes of 16-bit elements: the widest swizzle that there is.
constexpr cuuint32_t kBoxColumns = 64;

Encode find_encoder() {
  void* symbol = nullptr;
  cudaDriverEntryPointQueryResult result{};
  // 12.0 is where the function came in.
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &symbol, 12000, cudaEnableDefault, &result),
        "cudaGetDriverEntryPointByVersion(cuTensorMapEncodeTiled)");
  if (result != cudaDriverEntryPointSuccess || symbol == nullptr)
    fail(ErrorKind::unsupported, "driver: no cuTensorMapEncodeTiled, expected a driver for CUDA 12.0 or later");
  return reinterpret_cast<Encode>(symbol);
}

CUtensorMap encode(const void* data, DType dtype, cuuint32_t rank, const cuuint64_t* shape, const cuuint64_t* strides,
                   const cuuint32_t* box) {
  static const Encode encoder = find_encoder();
  require(dtype == DType::bf16 || dtype == DType::f16, "tensor map: dtype {}, expected bf16 or f16", name_of(dtype));
  require(reinterpret_cast<std::uintptr_t>(data) % 16 == 0, "tensor map: address {}, expected a multiple of 16 bytes",
          data);
  const std::array<cuuint32_t, 3> steps{1, 1, 1};
  CUtensorMap map{};
  const CUresult status =
      encoder(&map, dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, rank,
              const_cast<void*>(data), shape, strides, box, steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE,
              CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  require(status == CUDA_SUCCESS, "tensor map: {} x {} elements, row stride {} bytes, box of {} rows: driver error {}",
          shape[1], shape[0], strides[0], box[1], static_cast<int>(status));
  return map;
}

}  // namespace

CUtensorMap tensor_map_3d(const void* data, DType dtype, std::int64_t outer, std::int64_t rows, std::int64_t columns,
                          std::int64_t row_stride, int box_rows) {
  const std::array<cuuint64_t, 3> shape{static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows),
                                        static_cast<cuuint64_t>(outer)};
  const std::array<cuuint64_t, 2> strides{static_cast<cuuint64_t>(2 * row_stride),
                                          static_cast<cuuint64_t>(2 * row_stride * rows)};
  const std::array<cuuint32_t, 3> box{kBoxColumns, static_cast<cuuint32_t>(box_rows), 1};
  return encode(data, dtype, 3, shape.data(), strides.data(), box.data());
}

CUtensorMap tensor_map_2d(const void* data, DType dtype, std::int64_t rows, std::int64_t columns,
                          std::int64_t row_stride, int box_rows) {
  const std::array<cuuint64_t, 2> shape{static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const std::array<cuuint64_t, 1> strides{static_cast<cuuint64_t>(2 * row_stride)};
  const std::array<cuuint32_t, 2> box{kBoxColumns, static_cast<cuuint32_t>(box_rows)};
  return encode(data, dtype, 2, shape.data(), strides.data(), box.data());
}

}  // namespace conclave::cuda
