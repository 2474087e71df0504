// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// A third party's experts part, written over public headers only: right, or wrong in exactly one way, so that tests can
// demand that the engine names the right check.
#pragma once

#include "conclave/registry.hpp"

namespace conclave::test {

enum class Defect {
  none,
  swaps_gate_up,           ///< reads gate rows as up rows
  ignores_limit,           ///< never clamps
  ignores_w2_bias,         ///< as if the config had none
  ignores_expert_map,      ///< takes remote experts for slot 0
  weighs_twice,            ///< multiplies by the router weight squared
  forgets_last_row,        ///< leaves the last token's output unwritten
  forgets_empty_rows,      ///< writes nothing for tokens without a local expert
  depends_on_batch,        ///< another summation order for more than one token
  mixes_rows,              ///< adds 0 * the previous token
  depends_on_threads,      ///< another result with more than one thread
  differs_each_call,       ///< adds an ulp every second call
  modifies_input,          ///< scales the hidden states in place
  multiplies_zero_weight,  ///< adds 0 * a row instead of skipping it
  reads_scratch,           ///< sums into scratch that it never cleared
  writes_past_scratch,     ///< one byte behind what it asked for
  ignores_update,          ///< update() does nothing
  takes_foreign_weights,   ///< does not look who packed the weights
  ignores_has_bias,        ///< adds biases whenever the tensors are there
  throws,                  ///< apply() throws
};

/// "experts/plain". f32 only, reduced output.
Entry<Experts> plain_part(Defect defect);

/// The built-in routers and prepare/finalizes, and this part alone as experts.
Registry registry_with(Defect defect);

}  // namespace conclave::test
