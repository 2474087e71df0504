// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// A block a row: the open sum and the residual in f32, its mean of squares, the norm, the codes. Every column belongs
// to one thread from end to end, and everything is added in an order that follows from the width alone.
#include <cmath>

#include "cuda/elements.cuh"
#include "cuda/launch.hpp"
#include "cuda/ptx/control.cuh"
#include "quant/elements.hpp"
#include "quant/family.hpp"
#include "tail/cuda/tail.hpp"

namespace conclave::tail {
namespace {

namespace ptx = cuda::ptx;

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr unsigned kFinishThreads = 256;
/// Two blocks of a multiprocessor hold their rows in shared memory; wider ones go through the arena's.
constexpr std::int64_t kMostSharedBytes = 96 * 1024;

struct Matrix {
  void* data = nullptr;  ///< Null: absent.
  DType dtype = DType::f32;
  std::int64_t stride = 0, step = 1;

  __device__ float load(std::int64_t row, std::int64_t col) const {
    return cuda::load_element(data, dtype, row * stride + col * step);
  }
  __device__ void store(std::int64_t row, std::int64_t col, float value) const {
    cuda::store_element(data, dtype, row * stride + col * step, value);
  }
};

Matrix matrix_of(const ConstTensorView& v) {
  return {const_cast<void*>(v.data), v.dtype, v.rank == 2 ? v.stride(0) : 0, v.stride(-1)};
}
template <class View>
Matrix matrix_of(const std::optional<View>& v) {
  return v ? matrix_of(ConstTensorView(*v)) : Matrix{};
}

/// routed * s + shared of one column, in the order in which the CPU adds it.
struct OpenSum {
  Matrix rows;  ///< Permuted, or routed where there is no map.
  std::int64_t num_rows = 0;
  Matrix weights, shared;
  const std::int32_t* map = nullptr;
  std::int64_t map_stride = 0, map_step = 1, picks = 0;
  float scale = 1;

  __device__ float picked(std::int64_t token, std::int64_t col) const {
    float sum = 0;
    for (std::int64_t pick = 0; pick < picks; ++pick) {
      const std::int64_t row = map[token * map_stride + pick * map_step];
      const float weight = weights.load(token, pick);
      if (row < 0 || row >= num_rows || weight == 0.0F) continue;
      sum = __fadd_rn(sum, __fmul_rn(weight, rows.load(row, col)));
    }
    return sum;
  }
  __device__ float of(std::int64_t token, std::int64_t col) const {
    float sum = map == nullptr ? rows.load(token, col) : picked(token, col);
    if (scale != 1.0F) sum = __fmul_rn(sum, scale);
    return shared.data == nullptr ? sum : __fadd_rn(sum, shared.load(token, col));
  }
};

OpenSum open_sum_of(const MoeOutput& moe) {
  OpenSum sum;
  if (moe.unfinalized) {
    const ConstTensorView& map = moe.unfinalized->expanded_idx_to_permuted_idx;
    sum.rows = matrix_of(moe.unfinalized->gemm2_permuted);
    sum.num_rows = moe.unfinalized->gemm2_permuted.size(0);
    sum.weights = matrix_of(moe.unfinalized->expert_weights);
    sum.map = map.as<std::int32_t>();
    sum.map_stride = map.stride(0);
    sum.map_step = map.stride(1);
    sum.picks = map.size(1);
  } else {
    sum.rows = matrix_of(*moe.routed);
  }
  sum.shared = matrix_of(moe.shared_output);
  sum.scale = static_cast<float>(moe.routed_scaling_factor);
  return sum;
}

struct Tail {
  OpenSum open;
  Matrix residual, norm_weight, residual_out, normed;
  std::uint8_t* codes = nullptr;
  std::int64_t codes_stride = 0;
  const float* static_scale = nullptr;
  float* token_scales = nullptr;
  std::int64_t token_scales_stride = 0;
  float* spill = nullptr;  ///< [M, H]; null: rows lie in shared memory.
  std::int64_t width = 0;
  double epsilon = 0;
  float weight_bias = 0;
};

/// `combine` over the block, in one order: lanes by halves, then warps from the first on. Every thread gets it.
template <class T, class Combine>
__device__ T over_block(T value, T* of_warp, Combine combine) {
  for (int offset = 16; offset > 0; offset /= 2) value = combine(value, __shfl_xor_sync(~0U, value, offset));
  __syncthreads();  // of_warp may still be read for the sum before.
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  T all = of_warp[0];
  for (int warp = 1; warp < kWarps; ++warp) all = combine(all, of_warp[warp]);
  return all;
}

/// z := open sum + residual; its sum of squares, in double as on the CPU.
__device__ double add_residual(const Tail& t, std::int64_t row, float* z) {
  double squares = 0;
  for (std::int64_t col = threadIdx.x; col < t.width; col += kThreads) {
    float x = t.open.of(row, col);
    if (t.residual.data != nullptr) x = __fadd_rn(x, t.residual.load(row, col));
    z[col] = x;
    squares += static_cast<double>(x) * static_cast<double>(x);
    if (t.residual_out.data != nullptr) t.residual_out.store(row, col, x);
  }
  return squares;
}

struct Extent {
  float amax = 0;
  bool finite = true;
};

__device__ Extent normalise(const Tail& t, std::int64_t row, float inverse, float* z) {
  Extent extent;
  for (std::int64_t col = threadIdx.x; col < t.width; col += kThreads) {
    const float weight = __fadd_rn(t.norm_weight.load(0, col), t.weight_bias);
    const float y = __fmul_rn(__fmul_rn(z[col], inverse), weight);
    z[col] = y;
    if (t.normed.data != nullptr) t.normed.store(row, col, y);
    extent.amax = fmaxf(extent.amax, fabsf(y));
    extent.finite = extent.finite && isfinite(y);
  }
  return extent;
}

/// As on the CPU: of the whole row, or NaN where the row is not finite.
__device__ float scale_for(const Tail& t, std::int64_t row, const Extent& mine, float* of_warp) {
  constexpr float kSmallest = quant::kSmallestAmax;
  constexpr float kMost = quant::kMaxE4m3;
  if (t.static_scale != nullptr) {
    const float scale = *t.static_scale;
    return isfinite(scale) && scale > 0.0F ? scale : nanf("");
  }
  const float amax = over_block(mine.amax, of_warp, [](float a, float b) { return fmaxf(a, b); });
  const float scale = __syncthreads_and(mine.finite ? 1 : 0) != 0 ? __fdiv_rn(fmaxf(amax, kSmallest), kMost) : nanf("");
  if (threadIdx.x == 0) t.token_scales[row * t.token_scales_stride] = scale;
  return scale;
}

extern __shared__ float shared_row[];

__global__ void __launch_bounds__(kThreads) tail_row(Tail t) {
  __shared__ double squares_of_warp[kWarps];
  __shared__ float amax_of_warp[kWarps];
  ptx::wait_for_predecessor();
  ptx::launch_dependents();
  const std::int64_t row = blockIdx.x;
  float* z = t.spill == nullptr ? shared_row : t.spill + row * t.width;
  const double squares = over_block(add_residual(t, row, z), squares_of_warp, [](double a, double b) { return a + b; });
  if (t.normed.data == nullptr && t.codes == nullptr) return;
  const auto inverse = static_cast<float>(1.0 / sqrt(squares / static_cast<double>(t.width) + t.epsilon));
  const Extent extent = normalise(t, row, inverse, z);
  if (t.codes == nullptr) return;
  const float scale = scale_for(t, row, extent, amax_of_warp);
  for (std::int64_t col = threadIdx.x; col < t.width; col += kThreads)
    t.codes[row * t.codes_stride + col] = quant::f32_to_e4m3(__fdiv_rn(z[col], scale));
}

__global__ void __launch_bounds__(kFinishThreads)
    finish_elements(OpenSum open, Matrix out, std::int64_t tokens, std::int64_t cols) {
  ptx::wait_for_predecessor();
  ptx::launch_dependents();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kFinishThreads + threadIdx.x;
  if (i >= tokens * cols) return;
  const std::int64_t token = i / cols, col = i % cols;
  out.store(token, col, open.of(token, col));
}

}  // namespace

void run_on_cuda(const TailConfig& config, const TailInput& input, const TailOutput& output, const TensorView& rows,
                 Stream stream) {
  Tail t;
  t.open = open_sum_of(input.moe);
  t.residual = matrix_of(input.residual);
  t.norm_weight = matrix_of(input.norm_weight);
  t.residual_out = matrix_of(output.residual_out);
  t.normed = matrix_of(output.normed);
  if (output.quantised) {
    t.codes = output.quantised->as<std::uint8_t>();
    t.codes_stride = output.quantised->stride(0);
  }
  if (config.quant == QuantKey::fp8_tensor) t.static_scale = input.static_scale->as<float>();
  if (config.quant == QuantKey::fp8_token) {
    t.token_scales = output.token_scales->as<float>();
    t.token_scales_stride = output.token_scales->stride(0);
  }
  t.width = rows.size(1);
  t.epsilon = config.epsilon;
  t.weight_bias = static_cast<float>(config.weight_bias);
  const std::int64_t bytes = t.width * static_cast<std::int64_t>(sizeof(float));
  const bool fits = bytes <= kMostSharedBytes;
  if (!fits) t.spill = rows.as<float>();
  cuda::launch("tail_row", tail_row,
               {.grid = {static_cast<unsigned>(rows.size(0))},
                .block = {kThreads},
                .shared_bytes = fits ? static_cast<std::size_t>(bytes) : 0,
                .stream = static_cast<cudaStream_t>(stream.native)},
               t);
}

void finish_on_cuda(const MoeOutput& moe, const TensorView& output, Stream stream) {
  if (output.numel() == 0) return;
  cuda::launch("finish_elements", finish_elements,
               {.grid = {static_cast<unsigned>((output.numel() + kFinishThreads - 1) / kFinishThreads)},
                .block = {kFinishThreads},
                .stream = static_cast<cudaStream_t>(stream.native)},
               open_sum_of(moe), matrix_of(output), output.size(0), output.size(1));
}

}  // namespace conclave::tail
