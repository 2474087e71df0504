// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The run of layer_run.hpp.
#include "verify/layer_run.hpp"

#include <cstring>

#include "verify/element.hpp"
#include "verify/places.hpp"

namespace conclave::verify_detail {

Tensor run_layer(const Registry& registry, const std::string& experts, const LayerData& data, Stream stream) {
  PlanOptions options;
  options.experts = experts;
  options.report_tokens.clear();
  const Plan planned = plan(data.problem, registry, options);
  MoeLayer layer(planned, registry, data.weights(), stream);
  Workspace workspace(stream.device);
  workspace.region({}, planned.workspace_bytes);
  workspace.poison();
  workspace.lock();
  const ConstTensorView hidden = data.hidden_states.view;
  Tensor output(data.problem.moe.dtype, {hidden.size(0), data.problem.moe.hidden_size});
  poison(output);
  LayerInput input = data.input();
  if (data.problem.moe.in_place) output = clone(hidden);
  Places places(stream);
  const TensorView there = places.put(output.view());
  if (data.problem.moe.in_place)
    input.hidden_states = there;
  else
    input.hidden_states = places.put(input.hidden_states);
  places.put(input.router_logits);
  places.put(input.token_ids);
  layer.run(input, there, workspace, stream);
  places.take_back(output);
  return output;
}

}  // namespace conclave::verify_detail
