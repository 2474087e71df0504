// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Routers that are right except in one way: a built-in router whose result is spoilt afterwards.
#pragma once

#include "conclave/registry.hpp"

namespace conclave::test {

enum class RouterDefect {
  none,
  swaps_first_two,      ///< ids in another order than descending
  leaks_bias,           ///< adds the selection bias to the weights
  drops_factor,         ///< divides by routed_scaling_factor
  keeps_nan_weight,     ///< a row of NaN keeps weights of NaN
  forgets_last_slot,    ///< the last slot of every row is never written
  depends_on_batch,     ///< weights an ulp larger among others
  fails_on_zero_tokens  ///< throws for M = 0
};

/// A registry that holds only "router/broken", which spoils what the last built-in router (the reference) gives.
Registry registry_with_router(RouterDefect defect);

}  // namespace conclave::test
