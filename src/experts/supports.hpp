// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a problem. Out: yes, or the sentence with the value in the way. One predicate for each question that selection
// asks experts, in the order in which reasons are reported: device, gate, activation, quantisation and dtypes, parallel
// sizes, routing, logits, shape. A part chains them with first_refusal(); its format is a field of its Entry.
#pragma once

#include <span>

#include "conclave/config.hpp"
#include "conclave/support.hpp"

namespace conclave::experts {

Support supports_device(const Problem& problem, DeviceType device);

/// Refuses the kind (gated or not) that the part cannot compute.
Support supports_gate(const Problem& problem, bool gated, bool non_gated);

/// Refuses activations outside `known`, and constants that their formula does not have or that it lacks.
Support supports_activation(const Problem& problem, std::span<const Activation> known);

/// Refuses every quantisation key but none.
Support supports_unquantized(const Problem& problem);

/// Weights and activations in every key of their role, whose groups must divide H and I. A scale that spans the batch
/// needs the batch, and whole rows: it is refused over ranks that each see a part of either.
Support supports_every_quantisation(const Problem& problem);

/// moe.dtype and moe.weight_dtype among f32, bf16 and f16, in any combination.
Support supports_compute_dtypes(const Problem& problem);

/// Any tensor, pipeline or expert parallel split: experts see only their own weights. Refuses replicated experts.
Support supports_parallel(const Problem& problem);

/// Monolithic parts only: refuses what needs the routing outside of the part (zero experts).
Support supports_inner_routing(const Problem& problem);

/// Monolithic parts only: logits in f32, bf16 or f16.
Support supports_logits_dtype(const Problem& problem);

/// Sizes that are positive and consistent; no multiple of anything is asked for.
Support supports_any_shape(const Problem& problem);

/// All of the above for a part on the CPU that computes every unquantised problem.
Support supports_all_unquantized_on_cpu(const Problem& problem);
/// And for one that computes every quantised problem too.
Support supports_all_on_cpu(const Problem& problem);

}  // namespace conclave::experts
