// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The layer's problem -> the problems of its parts. Parts never see what the layer does around them: zero experts,
// fused shared slots, latent projections, the shared expert and a factor on the output are gone from their MoeConfig.
#pragma once

#include <optional>
#include <string>

#include "conclave/config.hpp"

namespace conclave {

/// What a modular prepare/finalize and experts see: ids and weights come in, so the routing rule is gone as well.
Problem modular_problem(const Problem& layer);

/// What monolithic parts see: the routing rule stays. Refused (a reason, not a problem) where the layer would have to
/// touch ids between the router and the experts.
std::optional<std::string> monolithic_refusal(const Problem& layer);
Problem monolithic_problem(const Problem& layer);

/// The shared expert as a problem of one expert that every token picks; nullopt if there is none.
std::optional<Problem> shared_problem(const Problem& layer);

/// True if the layer computes something from the kernel's output, so that it cannot go straight to the caller.
bool has_epilogue(const MoeConfig& layer) noexcept;

}  // namespace conclave
