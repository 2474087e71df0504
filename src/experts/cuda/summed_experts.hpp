// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: hidden states [M, H] bf16 or f16 on a GPU, ids and weights [M, k]. Out: [M, H], weighted and reduced. The part,
// but for the engine of its products.
#pragma once

#include <memory>
#include <string>

#include "conclave/experts.hpp"
#include "experts/cuda/engine.hpp"

namespace conclave::experts::cuda {

std::unique_ptr<Experts> make_summed_experts(std::string name, const Problem& problem, const GroupedEngine& engine);

}  // namespace conclave::experts::cuda
