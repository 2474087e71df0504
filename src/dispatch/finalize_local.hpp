// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Finalize without communication: the reduction that the experts named, or, where they leave it open, the one that fits
// the kind of their rows.
#pragma once

#include "conclave/config.hpp"
#include "conclave/prepare_finalize.hpp"

namespace conclave::dispatch {

void finalize_local(const FinalizeInput& input, const MoeConfig& moe, const TensorView& output, Stream stream);

}  // namespace conclave::dispatch
