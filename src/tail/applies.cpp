// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a problem and a number of tokens. Out: may the layer leave its last reduction to the tail, or why not.
#include <fmt/format.h>

#include "conclave/tail.hpp"
#include "tail/check.hpp"

namespace conclave {
namespace {

template <class... Args>
Support refuse_if(bool bad, fmt::format_string<Args...> text, Args&&... args) {
  return bad ? Support::no(fmt::format(text, std::forward<Args>(args)...)) : Support::yes();
}

Support supports_tokens(const TailConfig& config, std::int64_t num_tokens) {
  if (num_tokens <= 0) return Support::no(fmt::format("num_tokens {}: nothing to reduce", num_tokens));
  return refuse_if(config.max_num_tokens > 0 && num_tokens > config.max_num_tokens,
                   "num_tokens {}, fused for at most {}", num_tokens, config.max_num_tokens);
}

/// Partial sums of several ranks meet on the host.
Support supports_ranks(const Problem& problem) {
  const ParallelConfig& p = problem.parallel;
  return refuse_if(problem.device.device.type != DeviceType::cpu && p.tp_size * p.ep_size > 1,
                   "device {} with {} ranks, the tail there knows one", to_string(problem.device.device),
                   p.tp_size * p.ep_size);
}

/// The tail sums partial outputs of the same tokens. Behind an exchange each rank has tokens of its own.
Support supports_exchange(const ParallelConfig& p) {
  return refuse_if(p.use_all2all(),
                   "experts over {} ranks with {} (dp {}, pcp {}, sp {}): each rank has tokens of its own, finalize "
                   "must combine them",
                   p.ep_size, name_of(p.all2all), p.dp_size, p.pcp_size, p.sp_size);
}

/// Terms of the layer that come behind the sum over ranks, which the tail would make in another place.
Support supports_terms(const MoeConfig& c) {
  if (c.latent_size > 0)
    return Support::no(fmt::format("latent_size {}: the projection back is behind the top-k sum", c.latent_size));
  return refuse_if(c.zero_experts > 0, "zero_experts {}: their term is added once, behind the sum over ranks",
                   c.zero_experts);
}

}  // namespace

Support tail_fusion_applies(const Problem& problem, const TailConfig& config, std::int64_t num_tokens) {
  return first_refusal(supports_tokens(config, num_tokens), supports_ranks(problem),
                       refuse_if(!is_compute_dtype(problem.moe.dtype), "dtype {}, the tail takes f32, bf16 or f16",
                                 name_of(problem.moe.dtype)),
                       supports_exchange(problem.parallel), supports_terms(problem.moe),
                       tail::supports_tail_quant(config.quant));
}

}  // namespace conclave
