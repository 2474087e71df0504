// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Two kernels. On the tensor cores where a and w are both bf16 or both f16: K is cut into 32 pieces, each summed from
// zero, and the pieces are added in order; whether one warp walks all pieces (many tokens) or a cluster of 8 blocks
// shares them (few tokens, where reading w is all there is to do) changes nothing in the bits. Otherwise a plain tiled
// product that adds k by k.
#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/check.hpp"
#include "cuda/dense_kernels.hpp"
#include "cuda/elements.cuh"

namespace conclave::cuda {
namespace {

__device__ void finish(const DenseProduct& p, std::int32_t row, std::int32_t col, float sum) {
  if (row >= p.m || col >= p.n) return;
  if (p.bias != nullptr) sum += load_element(p.bias, p.bias_dtype, col);
  store_element(p.out, p.out_dtype, row * p.out_stride + col, sum);
}

constexpr int kPieces = 32;
/// Elements of k that four lanes load, 16 bytes each.
constexpr int kStep = 32;
/// Rows of w (the m side of the instruction) and rows of a (its n side).
constexpr int kRowsW = 16, kRowsA = 8;
constexpr int kWarps = 4;
constexpr int kCluster = kPieces / kWarps;

__device__ void multiply(float (&c)[4], const uint32_t (&w)[4], const uint32_t (&a)[2], __nv_bfloat16) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(a[0]), "r"(a[1]));
}
__device__ void multiply(float (&c)[4], const uint32_t (&w)[4], const uint32_t (&a)[2], __half) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(a[0]), "r"(a[1]));
}

/// 8 elements of a row, zeros outside of the matrix.
__device__ uint4 load8(const void* data, std::int64_t stride, std::int32_t row, std::int32_t rows, std::int32_t k,
                       std::int32_t num_k) {
  if (row >= rows || k >= num_k) return uint4{0, 0, 0, 0};
  return *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(data) + row * stride + k);
}

/// sums := the products of 16 rows of w and 8 J rows of a over one piece of k. A lane loads 8 consecutive elements of a
/// row, where the instruction wants two pairs 8 apart: both operands are permuted alike, so the sum is the same set.
template <class T, int J>
__device__ void sum_piece(const DenseProduct& p, std::int32_t row_w, std::int32_t row_a, int piece,
                          float (&sums)[J][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int32_t group = lane / 4, part = lane % 4 * 8;
  const std::int32_t steps = (p.k + kStep - 1) / kStep;
  const std::int32_t per_piece = (steps + kPieces - 1) / kPieces;
  const std::int32_t last = min(steps, (piece + 1) * per_piece);
#pragma unroll
  for (int j = 0; j < J; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[j][i] = 0;
#pragma unroll 2
  for (std::int32_t step = piece * per_piece; step < last; ++step) {
    const std::int32_t k = step * kStep + part;
    const uint4 low = load8(p.w, p.w_stride, row_w + group, p.n, k, p.k);
    const uint4 high = load8(p.w, p.w_stride, row_w + group + 8, p.n, k, p.k);
    uint4 a[J];
#pragma unroll
    for (int j = 0; j < J; ++j) a[j] = load8(p.a, p.a_stride, row_a + kRowsA * j + group, p.m, k, p.k);
#pragma unroll
    for (int j = 0; j < J; ++j) {
      multiply(sums[j], {low.x, high.x, low.y, high.y}, {a[j].x, a[j].y}, T{});
      multiply(sums[j], {low.z, high.z, low.w, high.w}, {a[j].z, a[j].w}, T{});
    }
  }
}

/// Element i of a lane's sums: row of w and row of a within the tile.
__device__ int w_of(int lane, int i) {
  return lane / 4 + (i >= 2 ? 8 : 0);
}
__device__ int a_of(int lane, int i) {
  return lane % 4 * 2 + i % 2;
}

template <class T, int J>
__global__ void __launch_bounds__(32 * kWarps) dense_walk(DenseProduct p) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const std::int32_t row_w = (static_cast<std::int32_t>(blockIdx.x) * kWarps + warp) * kRowsW;
  const std::int32_t row_a = static_cast<std::int32_t>(blockIdx.y) * kRowsA * J;
  if (row_w >= p.n) return;
  float total[J][4] = {};
  for (int piece = 0; piece < kPieces; ++piece) {
    float sums[J][4];
    sum_piece<T, J>(p, row_w, row_a, piece, sums);
#pragma unroll
    for (int j = 0; j < J; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) total[j][i] += sums[j][i];
  }
#pragma unroll
  for (int j = 0; j < J; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) finish(p, row_a + kRowsA * j + a_of(lane, i), row_w + w_of(lane, i), total[j][i]);
}

__device__ void cluster_barrier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

/// *at of another block of the cluster.
__device__ float load_remote(const float* at, int rank) {
  float value = 0;
#if __CUDA_ARCH__ >= 900
  const auto local = static_cast<uint32_t>(__cvta_generic_to_shared(at));
  asm volatile(
      "{\n\t.reg .u32 there;\n\tmapa.shared::cluster.u32 there, %1, %2;\n\tld.shared::cluster.f32 %0, [there];\n\t}"
      : "=f"(value)
      : "r"(local), "r"(rank));
#endif
  return value;
}

/// One tile for each cluster, one piece for each warp of it. Only launched where there are clusters.
template <class T, int J>
__global__ void __launch_bounds__(32 * kWarps) dense_cluster(DenseProduct p) {
  constexpr int kTile = kRowsW * kRowsA * J;
  __shared__ float partial[kWarps][kTile];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int rank = static_cast<int>(blockIdx.x) % kCluster;
  const std::int32_t row_w = static_cast<std::int32_t>(blockIdx.x) / kCluster * kRowsW;
  const std::int32_t row_a = static_cast<std::int32_t>(blockIdx.y) * kRowsA * J;
  float sums[J][4];
  sum_piece<T, J>(p, row_w, row_a, rank * kWarps + warp, sums);
#pragma unroll
  for (int j = 0; j < J; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) partial[warp][(kRowsA * j + a_of(lane, i)) * kRowsW + w_of(lane, i)] = sums[j][i];
  cluster_barrier();
  for (int at = static_cast<int>(threadIdx.x) * kCluster + rank; at < kTile; at += 32 * kWarps * kCluster) {
    float total = 0;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) total += load_remote(&partial[piece % kWarps][at], piece / kWarps);
    finish(p, row_a + at / kRowsW, row_w + at % kRowsW, total);
  }
  // A block that ends takes its shared memory with it.
  cluster_barrier();
}

constexpr int kPlainTile = 32, kPlainRows = 8;

__global__ void __launch_bounds__(kPlainTile* kPlainRows) dense_plain(DenseProduct p) {
  __shared__ float a[kPlainTile][kPlainTile + 1], w[kPlainTile][kPlainTile + 1];
  const auto x = static_cast<std::int32_t>(threadIdx.x), y = static_cast<std::int32_t>(threadIdx.y);
  const std::int32_t row_a = static_cast<std::int32_t>(blockIdx.y) * kPlainTile;
  const std::int32_t row_w = static_cast<std::int32_t>(blockIdx.x) * kPlainTile;
  float sums[kPlainTile / kPlainRows] = {};
  for (std::int32_t k = 0; k < p.k; k += kPlainTile) {
    for (std::int32_t i = y; i < kPlainTile; i += kPlainRows) {
      const bool inside = k + x < p.k;
      a[i][x] = inside && row_a + i < p.m ? load_element(p.a, p.a_dtype, (row_a + i) * p.a_stride + k + x) : 0;
      w[i][x] = inside && row_w + i < p.n ? load_element(p.w, p.w_dtype, (row_w + i) * p.w_stride + k + x) : 0;
    }
    __syncthreads();
    for (int i = 0; i < kPlainTile; ++i)
#pragma unroll
      for (int r = 0; r < kPlainTile / kPlainRows; ++r) sums[r] = __fmaf_rn(a[y + kPlainRows * r][i], w[x][i], sums[r]);
    __syncthreads();
  }
  for (int r = 0; r < kPlainTile / kPlainRows; ++r) finish(p, row_a + y + kPlainRows * r, row_w + x, sums[r]);
}

unsigned tiles(std::int32_t count, std::int32_t size) {
  return static_cast<unsigned>((count + size - 1) / size);
}

template <class T, int J>
void launch_cluster(const DenseProduct& p, cudaStream_t stream) {
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = kCluster;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(tiles(p.n, kRowsW) * kCluster, tiles(p.m, kRowsA * J));
  config.blockDim = dim3(32 * kWarps);
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, dense_cluster<T, J>, p), "dense_cluster");
}

int attribute(cudaDeviceAttr what, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, what, device), "cudaDeviceGetAttribute");
  return value;
}

template <class T>
void on_tensor_cores(const DenseProduct& p, int device, cudaStream_t stream) {
  constexpr int kMost = 8;
  const dim3 grid(tiles(p.n, kRowsW * kWarps), tiles(p.m, kRowsA * kMost));
  // Once the walk has a block for every SM, sharing pieces only reads a more often.
  const bool few = static_cast<int>(grid.x * grid.y) < attribute(cudaDevAttrMultiProcessorCount, device);
  if (few && attribute(cudaDevAttrClusterLaunch, device) != 0) {
    if (p.m <= kRowsA) return launch_cluster<T, 1>(p, stream);
    if (p.m <= 4 * kRowsA) return launch_cluster<T, 4>(p, stream);
    return launch_cluster<T, kMost>(p, stream);
  }
  dense_walk<T, kMost><<<grid, 32 * kWarps, 0, stream>>>(p);
  check(cudaGetLastError(), "dense_walk");
}

}  // namespace

void dense_on_tensor_cores(const DenseProduct& product, int device, cudaStream_t stream) {
  if (product.a_dtype == DType::bf16)
    on_tensor_cores<__nv_bfloat16>(product, device, stream);
  else
    on_tensor_cores<__half>(product, device, stream);
}

void dense_element_by_element(const DenseProduct& p, cudaStream_t stream) {
  // The other side of the grid may have 2^31 - 1 blocks, this one 65535.
  constexpr std::int32_t kRowsOnce = 65535 * kPlainTile;
  for (std::int32_t first = 0; first < p.m; first += std::min(kRowsOnce, p.m - first)) {
    DenseProduct part = p;
    part.m = std::min(kRowsOnce, p.m - first);
    part.a = static_cast<const std::byte*>(p.a) + bytes_of(p.a_dtype, first * p.a_stride);
    part.out = static_cast<std::byte*>(p.out) + bytes_of(p.out_dtype, first * p.out_stride);
    dense_plain<<<dim3(tiles(p.n, kPlainTile), tiles(part.m, kPlainTile)), dim3(kPlainTile, kPlainRows), 0, stream>>>(
        part);
    check(cudaGetLastError(), "dense_plain");
  }
}

}  // namespace conclave::cuda
