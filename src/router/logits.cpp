// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: hidden states and the router's weight. Out: logits in f32.
#include "base/error.hpp"
#include "base/tensor_format.hpp"
#include "conclave/router.hpp"
#include "cpu/dense.hpp"
#include "cuda/dense.hpp"

namespace conclave {

void router_logits(const ConstTensorView& hidden_states, const ConstTensorView& router_weight,
                   const std::optional<ConstTensorView>& router_bias, const TensorView& logits, Stream stream) {
  if (stream.device.type == DeviceType::cuda)
    return cuda::dense(hidden_states, router_weight, router_bias, logits, stream);
  require(stream.device.type == DeviceType::cpu && stream.executor != nullptr,
          "router_logits: stream: given device {} and executor {}, expected cpu and an executor", stream.device,
          stream.executor == nullptr ? "null" : "set");
  cpu::dense(hidden_states, router_weight, router_bias, logits, *stream.executor);
}

}  // namespace conclave
