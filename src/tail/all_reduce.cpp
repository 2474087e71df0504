// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: this rank's f32 rows. Out: their sum over the ranks of a communicator, in rank order, in place.
#include "conclave/tail.hpp"

namespace conclave {
namespace {

TensorView take_rank_sum_scratch(const Communicator& communicator, Arena& arena, std::int64_t count) {
  return arena.take(DType::f32, {communicator.all_reduce_scratch(count)});
}

}  // namespace

CommunicatorAllReduce::CommunicatorAllReduce(Communicator& communicator, Arena& arena, std::int64_t num_tokens,
                                             std::int64_t hidden_size, int channel)
    : communicator_(&communicator),
      scratch_(take_rank_sum_scratch(communicator, arena, num_tokens * hidden_size)),
      channel_(channel) {}

void CommunicatorAllReduce::plan_scratch(const Communicator& communicator, Arena& arena, std::int64_t num_tokens,
                                         std::int64_t hidden_size) {
  take_rank_sum_scratch(communicator, arena, num_tokens * hidden_size);
}

void CommunicatorAllReduce::operator()(const TensorView& partial) const {
  communicator_->all_reduce(partial.as<float>(), partial.numel(), scratch_.as<float>(), channel_);
}

}  // namespace conclave
