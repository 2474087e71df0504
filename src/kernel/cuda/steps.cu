// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Small kernels, one thread for each token or element; all of them together move a few bytes for each that the experts
// move.
#include <cuda_runtime.h>

#include "cuda/check.hpp"
#include "cuda/elements.cuh"
#include "kernel/cuda/find_bad_id.hpp"
#include "kernel/cuda/steps.hpp"

namespace conclave::on_cuda {
namespace {

constexpr unsigned kThreads = 256;

unsigned blocks_for(std::int64_t items) {
  return static_cast<unsigned>((items + kThreads - 1) / kThreads);
}

__device__ std::int64_t item() {
  return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}

cudaStream_t native(const Stream& stream) {
  return static_cast<cudaStream_t>(stream.native);
}

/// A matrix whose dtype is known at run time.
struct Matrix {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t stride = 0, step = 1;

  __device__ float load(std::int64_t row, std::int64_t col) const {
    return cuda::load_element(data, dtype, row * stride + col * step);
  }
  __device__ void store(std::int64_t row, std::int64_t col, float value) const {
    cuda::store_element(data, dtype, row * stride + col * step, value);
  }
  __device__ std::int64_t load_id(std::int64_t row, std::int64_t col) const {
    const std::int64_t at = row * stride + col * step;
    return dtype == DType::i64 ? static_cast<const std::int64_t*>(data)[at]
                               : static_cast<const std::int32_t*>(data)[at];
  }
  __device__ void store_id(std::int64_t row, std::int64_t col, std::int64_t id) const {
    const std::int64_t at = row * stride + col * step;
    if (dtype == DType::i64)
      static_cast<std::int64_t*>(data)[at] = id;
    else
      static_cast<std::int32_t*>(data)[at] = id >= -1 && id <= INT32_MAX ? static_cast<std::int32_t>(id) : -1;
  }
};

Matrix matrix_of(const ConstTensorView& v) {
  return {const_cast<void*>(v.data), v.dtype, v.stride(0), v.rank == 2 ? v.stride(1) : 1};
}

struct Slots {
  Matrix ids, weights;
};

Slots slots_of(const Routing& routing) {
  return {matrix_of(routing.topk_ids), matrix_of(routing.topk_weights)};
}

__global__ void __launch_bounds__(kThreads) convert(Slots from, Slots to, std::int64_t tokens, std::int64_t slots) {
  if (item() >= tokens * slots) return;
  const std::int64_t m = item() / slots, slot = item() % slots;
  to.ids.store_id(m, slot, from.ids.load_id(m, slot));
  to.weights.store(m, slot, from.weights.load(m, slot));
}

__global__ void __launch_bounds__(kThreads)
    split(Slots from, Slots to, float* zero_weight, std::int64_t first_zero, std::int64_t tokens, std::int64_t slots) {
  const std::int64_t m = item();
  if (m >= tokens) return;
  float sum = 0;
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    const std::int64_t id = from.ids.load_id(m, slot);
    const float weight = from.weights.load(m, slot);
    const bool zero = id >= first_zero;
    if (zero) sum += weight;
    to.ids.store_id(m, slot, zero ? -1 : id);
    to.weights.store(m, slot, zero ? 0.0F : weight);
  }
  zero_weight[m] = sum;
}

__global__ void __launch_bounds__(kThreads)
    finish_shared(std::int32_t* ids, float* weights, bool gated, std::int64_t tokens) {
  const std::int64_t m = item();
  if (m >= tokens) return;
  ids[m] = 0;
  weights[m] = gated ? 1.0F / (1.0F + expf(-weights[m])) : 1.0F;
}

struct Epilogue {
  Matrix routed, hidden, shared, out;
  const float* zero_weight = nullptr;
  float scale = 1;
  bool has_shared = false;
  std::int64_t tokens = 0, cols = 0;
};

__global__ void __launch_bounds__(kThreads) add_terms(Epilogue e) {
  if (item() >= e.tokens * e.cols) return;
  const std::int64_t m = item() / e.cols, col = item() % e.cols;
  float sum = e.routed.load(m, col);
  if (e.scale != 1.0F) sum = __fmul_rn(sum, e.scale);
  // A token that chose no zero expert skips the term, so that an infinite input cannot become NaN.
  const float zero = e.zero_weight == nullptr ? 0.0F : e.zero_weight[m];
  if (zero != 0.0F) sum = __fadd_rn(sum, __fmul_rn(zero, e.hidden.load(m, col)));
  if (e.has_shared) sum = __fadd_rn(sum, e.shared.load(m, col));
  e.out.store(m, col, sum);
}

__global__ void __launch_bounds__(kThreads)
    find_bad(Matrix ids, std::int64_t num_experts, unsigned long long* first, std::int64_t tokens, std::int64_t slots) {
  if (item() >= tokens * slots) return;
  const std::int64_t id = ids.load_id(item() / slots, item() % slots);
  if (id < -1 || id >= num_experts) atomicMin(first, static_cast<unsigned long long>(item()));
}

}  // namespace

void convert_routing(const Routing& from, const Routing& to, Stream stream) {
  const std::int64_t tokens = from.topk_ids.size(0), slots = from.topk_ids.size(1);
  if (tokens * slots == 0) return;
  convert<<<blocks_for(tokens * slots), kThreads, 0, native(stream)>>>(slots_of(from), slots_of(to), tokens, slots);
  cuda::check(cudaGetLastError(), "convert_routing");
}

void split_zero_experts(const Routing& routing, std::int64_t first_zero_id, const Routing& experts,
                        const TensorView& zero_weight, Stream stream) {
  const std::int64_t tokens = routing.topk_ids.size(0), slots = routing.topk_ids.size(1);
  if (tokens == 0) return;
  split<<<blocks_for(tokens), kThreads, 0, native(stream)>>>(slots_of(routing), slots_of(experts),
                                                             zero_weight.as<float>(), first_zero_id, tokens, slots);
  cuda::check(cudaGetLastError(), "split_zero_experts");
}

void finish_shared_routing(const Routing& routing, bool gated, Stream stream) {
  const std::int64_t tokens = routing.topk_ids.size(0);
  if (tokens == 0) return;
  finish_shared<<<blocks_for(tokens), kThreads, 0, native(stream)>>>(routing.topk_ids.as<std::int32_t>(),
                                                                     routing.topk_weights.as<float>(), gated, tokens);
  cuda::check(cudaGetLastError(), "finish_shared_routing");
}

void epilogue(const EpilogueInput& input, const TensorView& output, Stream stream) {
  if (output.numel() == 0) return;
  Epilogue e;
  e.routed = matrix_of(input.routed);
  e.hidden = matrix_of(input.hidden_states);
  e.out = matrix_of(output);
  e.scale = static_cast<float>(input.routed_scale);
  if (input.zero_weight) e.zero_weight = input.zero_weight->as<float>();
  e.has_shared = input.shared.has_value();
  if (input.shared) e.shared = matrix_of(*input.shared);
  e.tokens = output.size(0);
  e.cols = output.size(1);
  add_terms<<<blocks_for(output.numel()), kThreads, 0, native(stream)>>>(e);
  cuda::check(cudaGetLastError(), "epilogue");
}

void find_bad_id(const ConstTensorView& ids, std::int64_t num_experts, const TensorView& scratch, Stream stream) {
  // Every byte 0x7F: a number beyond all indices.
  cuda::check(cudaMemsetAsync(scratch.data, 0x7F, sizeof(std::int64_t), native(stream)), "cudaMemsetAsync");
  find_bad<<<blocks_for(ids.numel()), kThreads, 0, native(stream)>>>(
      matrix_of(ids), num_experts, scratch.as<unsigned long long>(), ids.size(0), ids.size(1));
  cuda::check(cudaGetLastError(), "find_bad_id");
}

}  // namespace conclave::on_cuda
