// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: the stored projections of w13 or w2. Out: the tensors of all experts in the library's form.
#pragma once

#include <optional>

#include "io/block_tensors.hpp"

namespace conclave {

struct CodedMatrices {
  Tensor elements;  ///< [E, rows, ...]
  std::optional<Tensor> scale, global_scale, zero_point;
};

/// Rows of `gate` (if any) above those of `up`, in codes of `key`, or in f32 where it is none. One element an expert,
/// or one for all. Pages of the file are released as soon as they are read.
CodedMatrices load_codes(const std::vector<StoredProjection>& gate, const std::vector<StoredProjection>& up,
                         std::int64_t experts, QuantKey key);

}  // namespace conclave
