// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a layer and a batch. Out: the layer's output, computed in interleaved parts.
#include "base/error.hpp"
#include "base/tensor_format.hpp"
#include "conclave/micro_batches.hpp"
#include "cpu/parallel_for.hpp"

namespace conclave {
namespace {

template <class View>
std::optional<View> rows_of(const std::optional<View>& view, const cpu::Range& rows) {
  if (!view) return std::nullopt;
  return view->narrow(0, rows.begin, rows.size());
}

std::optional<Routing> rows_of(const std::optional<Routing>& routing, const cpu::Range& rows) {
  if (!routing) return std::nullopt;
  return Routing{routing->topk_ids.narrow(0, rows.begin, rows.size()),
                 routing->topk_weights.narrow(0, rows.begin, rows.size())};
}

/// Every tensor of the input has one row for each token; narrowing must not be the first to look.
void check_rows(const LayerInput& input, const TensorView& output) {
  const ConstTensorView& x = input.hidden_states;
  require(x.rank == 2, "hidden_states: given {}, expected [num_tokens, hidden_size]", x);
  const auto check = [&](const char* what, const ConstTensorView& view) {
    require(view.rank >= 1 && view.size(0) == x.size(0), "{}: given {}, expected {} rows as hidden_states", what, view,
            x.size(0));
  };
  check("output", output);
  if (input.router_logits) check("router_logits", *input.router_logits);
  if (input.token_ids) check("token_ids", *input.token_ids);
  for (const auto& routing : {input.routing, input.captured}) {
    if (!routing) continue;
    check("topk_ids", routing->topk_ids);
    check("topk_weights", routing->topk_weights);
  }
}

}  // namespace

void run_micro_batched(MoeLayer& layer, const LayerInput& input, const TensorView& output, Workspace& workspace,
                       Stream stream, MicroBatches& batches, int lane) {
  check_rows(input, output);
  batches.run([&](int id) {
    const cpu::Range rows = cpu::static_share(input.hidden_states.size(0), batches.count(), id);
    LayerInput part = input;
    part.hidden_states = input.hidden_states.narrow(0, rows.begin, rows.size());
    part.router_logits = rows_of(input.router_logits, rows);
    part.routing = rows_of(input.routing, rows);
    part.token_ids = rows_of(input.token_ids, rows);
    part.captured = rows_of(input.captured, rows);
    layer.run(part, output.narrow(0, rows.begin, rows.size()), workspace, stream, {id, lane});
  });
}

}  // namespace conclave
