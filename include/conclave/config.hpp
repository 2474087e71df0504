// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The problem as plain data: what the layer computes (MoeConfig), over which ranks (ParallelConfig), in which formats
// (QuantConfig) and on what (DeviceFacts). Every part honours or refuses every field; none is silently ignored.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "conclave/activation.hpp"
#include "conclave/expert_map.hpp"
#include "conclave/quant.hpp"
#include "conclave/routing.hpp"
#include "conclave/tensor.hpp"

namespace conclave {

/// A dense expert that every token visits: shared_gate . act(shared_w13 x) . shared_w2.
struct SharedExpertConfig {
  std::int64_t intermediate_size = 0;  ///< 0: no shared expert. May differ from the routed experts'.
  bool sigmoid_gate = false;           ///< output * sigmoid(x . shared_gate), as in Qwen2-MoE.
  bool operator==(const SharedExpertConfig&) const = default;
};

/// One MoE layer. Dimensions are counts of elements; sizes of one rank where tensor parallelism cuts them.
struct MoeConfig {
  std::int64_t num_experts = 0;        ///< E: width of the router, zero experts included.
  std::int64_t top_k = 0;              ///< k: picks for each token, fused shared slots not included.
  std::int64_t hidden_size = 0;        ///< H: width of the layer's input and output.
  std::int64_t intermediate_size = 0;  ///< I: inner width of one expert on this rank.
  std::int64_t latent_size = 0;        ///< 0, or the width that the routed experts work in (latent MoE).
  std::int64_t zero_experts = 0;       ///< The highest ids are identity experts without weights.
  std::int64_t max_num_tokens = 4096;  ///< The largest M that run() will see; sizes every buffer.

  DType dtype = DType::bf16;               ///< Activations in and out.
  DType weight_dtype = DType::bf16;        ///< Expert weights as given, when quant.weights is none.
  DType router_logits_dtype = DType::f32;  ///< Logits, when the caller brings them.

  Activation activation = Activation::silu;
  ActivationParams activation_params;
  W13Layout w13_layout = W13Layout::gate_up;
  bool has_w13_bias = false;
  bool has_w2_bias = false;

  RoutingConfig routing;
  bool apply_router_weight_on_input = false;  ///< x := x * w before the experts; legal for top_k 1 only.
  bool routed_scale_on_output = false;        ///< The factor multiplies the routed sum instead of the weights.

  SharedExpertConfig shared;
  bool in_place = false;  ///< output may be the input's memory; refused together with a shared expert.
  bool checked = false;   ///< Ids outside -1 or [0, E) throw; otherwise such a slot counts as empty.

  bool operator==(const MoeConfig&) const = default;

  /// Experts that have weights, fused shared ones included: what expert_map and w13 are indexed by.
  std::int64_t num_weight_experts() const noexcept {
    return num_experts - zero_experts + routing.num_fused_shared_experts;
  }
  /// Columns of topk_ids.
  std::int64_t num_slots() const noexcept { return top_k + routing.num_fused_shared_experts; }
  /// Width of the routed experts' input and output.
  std::int64_t expert_width() const noexcept { return latent_size > 0 ? latent_size : hidden_size; }
};

/// Throws Error naming the first field that breaks a rule and its value (top_k > num_experts, I <= 0, ...).
void validate(const MoeConfig& config);

enum class All2All : std::uint8_t { none, allgather_reducescatter, all_to_all, low_latency };
std::string_view name_of(All2All all2all) noexcept;
All2All all2all_from_name(std::string_view name);

/// Sizes and ranks after flattening (make_parallel): with expert parallelism tp is 1 and ep is everything.
struct ParallelConfig {
  std::int64_t tp_size = 1, tp_rank = 0;
  std::int64_t pcp_size = 1, pcp_rank = 0;
  std::int64_t dp_size = 1, dp_rank = 0;
  std::int64_t ep_size = 1, ep_rank = 0;
  std::int64_t sp_size = 1;
  bool use_ep = false;
  bool enable_eplb = false;  ///< Experts have replicas, which the layer chooses, counts and moves (eplb.hpp).
  std::int64_t num_redundant_experts = 0;  ///< Slots beyond one for each expert, over all ranks; with enable_eplb.
  All2All all2all = All2All::none;
  Placement placement = Placement::linear;  ///< Which rank holds which expert; with all2all every rank must know.
  bool operator==(const ParallelConfig&) const = default;

  bool use_all2all() const noexcept { return use_ep && (dp_size > 1 || pcp_size > 1 || sp_size > 1); }
  bool uses_batched_format() const noexcept { return use_all2all() && all2all == All2All::low_latency; }
};

/// The flattening rule of the reference: tp' = dp * pcp * tp with rank dp_rank * pcp * tp + pcp_rank * tp + tp_rank;
/// with experts in parallel (and tp' > 1) ep takes all of it and tp becomes 1. Throws Error on ranks out of range.
ParallelConfig make_parallel(std::int64_t tp_size, std::int64_t tp_rank, std::int64_t pcp_size, std::int64_t pcp_rank,
                             std::int64_t dp_size, std::int64_t dp_rank, std::int64_t sp_size, bool expert_parallel,
                             All2All all2all);

/// Which vector units may be used. Higher levels include lower ones on every CPU that has them.
struct CpuFeatures {
  bool avx2 = false;    ///< AVX2, FMA and F16C together.
  bool avx512 = false;  ///< F, BW, VL, DQ together.
  bool avx512_bf16 = false;
  bool avx512_vnni = false;
  bool amx_bf16 = false;  ///< Reported by CPUID and granted by the kernel.
  bool amx_int8 = false;
  /// vdpbf16ps takes two cycles: Intel's cores with AMX, also where a hypervisor hides that. f32 products, of which two
  /// start in each cycle, then do twice as many.
  bool slow_avx512_bf16 = false;
  bool operator==(const CpuFeatures&) const = default;
};

/// What selection knows about the machine. Plain data, so that a plan for another machine can be made and tested here.
struct DeviceFacts {
  Device device{};
  std::string name;
  int num_threads = 1;  ///< CPU threads of the executor; SM count on a GPU.
  CpuFeatures cpu;
  int compute_capability = 0;       ///< GPUs: major * 10 + minor; 90 is Hopper.
  std::int64_t l2_bytes = 1 << 20;  ///< For each core (CPU).
  /// Measured ceilings; 0 means not measured, and then no time is predicted.
  double bytes_per_second = 0;
  double f32_flops = 0;
  double bf16_flops = 0;
  double f16_flops = 0;
  bool operator==(const DeviceFacts&) const = default;
};

/// Facts of the machine that this process runs on, without measured ceilings. Asks the CPU, not the build.
DeviceFacts cpu_facts(int num_threads);

struct Problem {
  MoeConfig moe;
  ParallelConfig parallel;
  QuantConfig quant;
  DeviceFacts device;
  std::vector<std::string> notes{};  ///< What was done to the problem on the way here; lines of the plan's report.
};

}  // namespace conclave
