// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: the public description of an activation, or a row of the first product. Out: its resolved form, or the row that
// the second product takes.
#include "experts/activation.hpp"

namespace conclave::experts {

ActivationFn make_activation(Activation activation, const ActivationParams& params) {
  const ActivationParams r = resolve(activation, params);
  ActivationFn fn;
  fn.kind = activation;
  fn.gated = is_gated(activation);
  fn.alpha = static_cast<float>(r.alpha.value_or(1.0));
  fn.beta = static_cast<float>(r.beta.value_or(0.0));
  fn.linear_beta = static_cast<float>(r.linear_beta.value_or(0.0));
  fn.has_limit = r.limit.has_value();
  if (fn.has_limit) fn.limit = static_cast<float>(*r.limit);
  return fn;
}

void activate_row(const ActivationFn& fn, W13Layout layout, const float* in, float* out,
                  std::int64_t intermediate_size) {
  for (std::int64_t i = 0; i < intermediate_size; ++i) {
    const W13Rows row = w13_rows_of(layout, fn.gated, i, intermediate_size);
    out[i] = fn.gated ? activate(fn, in[row.gate], in[row.up]) : activate(fn, in[row.gate]);
  }
}

}  // namespace conclave::experts
