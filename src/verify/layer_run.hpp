// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a layer's data and the name of an experts part. Out: the output of MoeLayer with that part pinned.
#pragma once

#include <string>

#include "conclave/registry.hpp"
#include "verify/layer_data.hpp"

namespace conclave::verify_detail {

/// Throws what plan(), MoeLayer and run() throw. The workspace and the output are poisoned; with moe.in_place the
/// hidden states are copied into the output first.
Tensor run_layer(const Registry& registry, const std::string& experts, const LayerData& data, Stream stream);

}  // namespace conclave::verify_detail
