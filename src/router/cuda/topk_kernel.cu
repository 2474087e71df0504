// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The rule of routing.hpp, one warp a token. Lane l holds experts l, l + 32, ... in registers; what is indexed by id or
// by pick goes through the warp's own piece of shared memory.
#include <cuda_runtime.h>

#include "cuda/elements.cuh"
#include "cuda/launch.hpp"
#include "cuda/ptx/control.cuh"
#include "router/cuda/score.cuh"
#include "router/cuda/topk_kernel.hpp"

namespace conclave::router {
namespace {

constexpr int kWarps = 4;
constexpr std::uint32_t kMaskedFromOne = 2;

/// Shared memory of one warp.
struct Shared {
  std::uint64_t* groups;  ///< [num_groups] selection keys; 0: the group won
  float* row;             ///< [E] what weights are made of: scores, or logits where these are ranked
  float* weights;         ///< [top_k]
  std::int32_t* ids;      ///< [top_k]
};

__host__ __device__ std::int64_t shared_bytes(const TopkWork& w) {
  const std::int64_t bytes = 8 * w.num_groups + 4 * w.num_experts + 8 * w.top_k;
  return (bytes + 15) / 16 * 16;
}

__device__ Shared shared_of(const TopkWork& w, unsigned char* memory, int warp) {
  Shared s{};
  s.groups = reinterpret_cast<std::uint64_t*>(memory + warp * shared_bytes(w));
  s.row = reinterpret_cast<float*>(s.groups + w.num_groups);
  s.weights = s.row + w.num_experts;
  s.ids = reinterpret_cast<std::int32_t*>(s.weights + w.top_k);
  return s;
}

__device__ bool is_expert(const TopkWork& w, std::int32_t id) {
  return id >= 0 && id < w.num_experts;
}

/// s := softmax over the numbers of x, spread over the lanes. Entries beyond the row are NaN.
template <int N>
__device__ void softmax(const float (&x)[N], float (&s)[N]) {
  float top = -infinity();
#pragma unroll
  for (int i = 0; i < N; ++i) top = x[i] > top ? x[i] : top;
  top = warp_max(top);
  double sum = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    s[i] = isnan(x[i]) ? 0.0F : softmax_term(x[i], top);
    sum += static_cast<double>(s[i]);
  }
  const float total = static_cast<float>(warp_sum(sum));
  if (total == 0.0F) return;  // Nothing but NaN.
#pragma unroll
  for (int i = 0; i < N; ++i) s[i] = __fdiv_rn(s[i], total);
}

/// The key of a group: its best number, or the sum of its best two.
template <int N>
__device__ std::uint64_t group_key(const TopkWork& w, const float (&choice)[N], std::int32_t group, std::int32_t size,
                                   int lane) {
  float best = -infinity(), second = -infinity();
  bool any = false;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const std::int32_t e = lane + 32 * i;
    if (e < group * size || e >= (group + 1) * size || isnan(choice[i])) continue;
    any = true;
    second = fmaxf(second, fminf(best, choice[i]));
    best = fmaxf(best, choice[i]);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, best, step);
    second = fmaxf(fmaxf(second, __shfl_xor_sync(kAllLanes, second, step)), fminf(best, other));
    best = fmaxf(best, other);
  }
  float value = best;
  // Infinity plus minus infinity must not become NaN.
  if (w.group_score == GroupScore::top2_sum && size > 1 && best != infinity()) value = __fadd_rn(best, second);
  if (!__any_sync(kAllLanes, any)) value = not_a_number();
  return (static_cast<std::uint64_t>(rank_from_one(value)) << 32) | (0xFFFFFFFFU - static_cast<std::uint32_t>(group));
}

/// The best groups get key 0.
template <int N>
__device__ void choose_groups(const TopkWork& w, const float (&choice)[N], std::int32_t size, const Shared& s,
                              int lane) {
  for (std::int32_t g = 0; g < w.num_groups; ++g) {
    const std::uint64_t key = group_key(w, choice, g, size, lane);
    if (lane == 0) s.groups[g] = key;
  }
  __syncwarp();
  for (std::int32_t round = 0; round < w.top_groups; ++round) {
    std::uint64_t best = 0;
    for (std::int32_t g = lane; g < w.num_groups; g += 32) best = max(best, s.groups[g]);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) best = max(best, __shfl_xor_sync(kAllLanes, best, step));
    __syncwarp();  // Every lane has read what lane 0 is about to change.
    if (lane == 0) s.groups[0xFFFFFFFFU - static_cast<std::uint32_t>(best)] = 0;
    __syncwarp();
  }
}

/// The same for groups of 32, which are one register of every lane: all groups at once, without shared memory. What the
/// best-known grouped models have (256 experts in 8 groups).
template <int N>
__device__ void mask_groups_of_32(const TopkWork& w, const float (&choice)[N], std::uint32_t (&rank)[N]) {
  float best[N], second[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    best[i] = isnan(choice[i]) ? -infinity() : choice[i];
    second[i] = -infinity();
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float other = __shfl_xor_sync(kAllLanes, best[i], step);
      second[i] = fmaxf(fmaxf(second[i], __shfl_xor_sync(kAllLanes, second[i], step)), fminf(best[i], other));
      best[i] = fmaxf(best[i], other);
    }
  std::uint32_t key[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const bool sum = w.group_score == GroupScore::top2_sum && best[i] != infinity();
    const float value = sum ? __fadd_rn(best[i], second[i]) : best[i];
    key[i] = rank_from_one(__any_sync(kAllLanes, !isnan(choice[i])) ? value : not_a_number());
  }
#pragma unroll
  for (int i = 0; i < N; ++i) {
    // Groups that go before this one: larger, or as large with a lower index.
    int before = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) before += j < w.num_groups && (j < i ? key[j] >= key[i] : key[j] > key[i]) ? 1 : 0;
    if (before >= w.top_groups && rank[i] > 1) rank[i] = kMaskedFromOne;
  }
}

template <int N>
__device__ void choose_experts(const TopkWork& w, const float (&choice)[N], const Shared& s, int lane) {
  std::uint32_t rank[N];
#pragma unroll
  for (int i = 0; i < N; ++i) rank[i] = lane + 32 * i < w.num_experts ? rank_from_one(choice[i]) : 0;
  const std::int32_t size = w.num_experts / w.num_groups;
  if (w.num_groups > 1 && size == 32) {
    mask_groups_of_32(w, choice, rank);
  } else if (w.num_groups > 1) {
    choose_groups(w, choice, size, s, lane);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const std::int32_t e = lane + 32 * i;
      if (e < w.num_experts && rank[i] > 1 && s.groups[e / size] != 0) rank[i] = kMaskedFromOne;
    }
  }
  for (std::int32_t k = 0; k < w.top_k; ++k) {
    std::uint32_t best = 0;
    std::uint32_t expert = 0xFFFFFFFFU;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (rank[i] <= best) continue;  // A tie goes to the lower index, which came first.
      best = rank[i];
      expert = static_cast<std::uint32_t>(lane + 32 * i);
    }
    const std::uint32_t top = __reduce_max_sync(kAllLanes, best);
    expert = __reduce_min_sync(kAllLanes, best == top ? expert : 0xFFFFFFFFU);
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (static_cast<std::uint32_t>(lane + 32 * i) == expert) rank[i] = 0;
    if (lane == 0) s.ids[k] = static_cast<std::int32_t>(expert);
  }
}

/// What the table says for the row's token; -1 where that is no expert, or the token is not in the table.
__device__ void look_up(const TopkWork& w, std::int64_t m, const Shared& s, int lane) {
  const std::int64_t token = w.tokens_are_i64 ? static_cast<const std::int64_t*>(w.token_ids)[m * w.token_stride]
                                              : static_cast<const std::int32_t*>(w.token_ids)[m * w.token_stride];
  const bool known = token >= 0 && token < w.table_rows;
  for (std::int32_t k = lane; k < w.top_k; k += 32) {
    const std::int32_t id = known ? w.hash_table[token * w.table_stride + k] : -1;
    s.ids[k] = is_expert(w, id) ? id : -1;
  }
}

/// PhiMoE: each pick by a softmax over the experts not picked before that are near the largest of them. Uses x up.
template <int N>
__device__ void weigh_sparsemixer(const TopkWork& w, float (&x)[N], const Shared& s, int lane) {
  for (std::int32_t k = 0; k < w.top_k; ++k) {
    const std::int32_t id = s.ids[k];
    const float top = s.row[id];
    double sum = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (isnan(x[i]) || __fdiv_rn(__fsub_rn(top, x[i]), fmaxf(fabsf(x[i]), top)) > w.jitter_limit) continue;
      sum += static_cast<double>(softmax_term(x[i], top));
    }
    sum = warp_sum(sum);
    if (lane == 0) s.weights[k] = isnan(top) ? 0.0F : __fdiv_rn(1.0F, static_cast<float>(sum));
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (lane + 32 * i == id) x[i] = not_a_number();
  }
}

/// Scoring of the chosen logits alone. An empty slot takes part in nothing, as a NaN does.
__device__ void score_chosen(const TopkWork& w, const Shared& s, int lane) {
  float top = -infinity();
  for (std::int32_t k = lane; k < w.top_k; k += 32) {
    const float x = is_expert(w, s.ids[k]) ? s.row[s.ids[k]] : not_a_number();
    s.weights[k] = w.scoring == Scoring::softmax ? x : score_alone(w.scoring, x);
    top = x > top ? x : top;
  }
  if (w.scoring != Scoring::softmax) return;
  top = warp_max(top);
  for (std::int32_t k = lane; k < w.top_k; k += 32)
    s.weights[k] = isnan(s.weights[k]) ? 0.0F : softmax_term(s.weights[k], top);
  __syncwarp();
  double sum = 0;
  for (std::int32_t k = 0; k < w.top_k; ++k) sum += static_cast<double>(s.weights[k]);
  const float total = static_cast<float>(sum);
  __syncwarp();
  if (total == 0.0F) return;
  for (std::int32_t k = lane; k < w.top_k; k += 32) s.weights[k] = __fdiv_rn(s.weights[k], total);
}

__device__ float sum_in_order(const TopkWork& w, const Shared& s) {
  float sum = 0;
  for (std::int32_t k = 0; k < w.top_k; ++k) sum = __fadd_rn(sum, s.weights[k]);
  return sum;
}

/// Every lane computes the sum itself, in the order of k.
__device__ void renormalize(const TopkWork& w, const Shared& s, int lane) {
  if (w.renormalize == Renormalize::none) return;
  const float sum = sum_in_order(w, s);
  float divisor =
      w.renormalize == Renormalize::sum_plus_epsilon ? __fadd_rn(sum, w.epsilon) : (sum < w.epsilon ? w.epsilon : sum);
  __syncwarp();
  if (isinf(sum)) {  // Infinite weights share the whole; inf / inf would be NaN.
    for (std::int32_t k = lane; k < w.top_k; k += 32) s.weights[k] = s.weights[k] == sum ? 1.0F : 0.0F;
    __syncwarp();
    divisor = sum_in_order(w, s);
    __syncwarp();
  }
  for (std::int32_t k = lane; k < w.top_k; k += 32)
    s.weights[k] = divisor == 0.0F ? 0.0F : __fdiv_rn(s.weights[k], divisor);
}

__device__ void store(const TopkWork& w, std::int64_t m, const Shared& s, int lane) {
  std::int32_t* ids = w.ids + m * w.ids_stride;
  float* weights = w.weights + m * w.weights_stride;
  for (std::int32_t k = lane; k < w.num_slots; k += 32) {
    const bool chosen = k < w.top_k;
    ids[k] = chosen ? s.ids[k] : w.num_experts + (k - w.top_k);
    weights[k] = !chosen ? w.shared_weight : w.factor == 1.0F ? s.weights[k] : __fmul_rn(s.weights[k], w.factor);
  }
}

template <int N>
__global__ void __launch_bounds__(32 * kWarps) topk(TopkWork w) {
  extern __shared__ unsigned char memory[];
  // First of all: the next kernel starts up, and waits, while this one works.
  cuda::ptx::launch_dependents();
  cuda::ptx::wait_for_predecessor();
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t m = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp;
  if (m >= w.num_tokens) return;
  const Shared s = shared_of(w, memory, warp);
  // All loads before any arithmetic: scores branch, and a load behind a branch would wait for the one before it.
  float x[N], bias[N], score[N], choice[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const std::int32_t e = lane + 32 * i;
    x[i] = e < w.num_experts ? cuda::load_element(w.logits, w.dtype, m * w.logits_stride + e) : not_a_number();
  }
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const std::int32_t e = lane + 32 * i;
    bias[i] = w.bias != nullptr && e < w.num_experts ? w.bias[e] : 0.0F;
  }
  if (!w.ranks_logits && w.scoring == Scoring::softmax) {
    softmax(x, score);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) score[i] = w.ranks_logits ? x[i] : score_alone(w.scoring, x[i]);
  }
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const std::int32_t e = lane + 32 * i;
    if (e < w.num_experts) s.row[e] = score[i];
    choice[i] = isnan(x[i]) ? x[i] : w.bias == nullptr ? score[i] : __fadd_rn(score[i], bias[i]);
  }
  if (w.token_ids != nullptr)
    look_up(w, m, s, lane);
  else
    choose_experts(w, choice, s, lane);
  __syncwarp();
  if (w.sparsemixer) {
    weigh_sparsemixer(w, x, s, lane);
  } else if (w.ranks_logits) {
    score_chosen(w, s, lane);
  } else {
    for (std::int32_t k = lane; k < w.top_k; k += 32) s.weights[k] = is_expert(w, s.ids[k]) ? s.row[s.ids[k]] : 0.0F;
  }
  __syncwarp();
  renormalize(w, s, lane);
  __syncwarp();
  store(w, m, s, lane);
}

template <int N>
void start(const TopkWork& work, cudaStream_t stream) {
  const auto bytes = static_cast<std::size_t>(kWarps * shared_bytes(work));
  const auto blocks = static_cast<unsigned>((work.num_tokens + kWarps - 1) / kWarps);
  cuda::launch("topk", topk<N>, {.grid = {blocks}, .block = {32 * kWarps}, .shared_bytes = bytes, .stream = stream},
               work);
}

}  // namespace

void launch_topk(const TopkWork& work, cudaStream_t stream) {
  if (work.num_experts <= 64) return start<2>(work, stream);
  if (work.num_experts <= 128) return start<4>(work, stream);
  if (work.num_experts <= 256) return start<8>(work, stream);
  if (work.num_experts <= 512) return start<16>(work, stream);
  start<32>(work, stream);
}

}  // namespace conclave::router
