// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: the resolved tensors of one block. Out: LayerWeights: views of the file where it already has the kernels' order,
// owned memory where matrices are stored one by one or transposed.
#pragma once

#include <memory>

#include "conclave/layer.hpp"
#include "io/block_tensors.hpp"

namespace conclave {

/// `store` is kept alive by the result. Pages of the file are released as soon as they are copied.
LayerWeights load_block(const BlockTensors& block, const MoeConfig& moe, std::shared_ptr<const TensorStore> store);

}  // namespace conclave
