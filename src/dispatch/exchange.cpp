// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The common half of exchange.hpp.
#include "dispatch/exchange.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/tensor_format.hpp"
#include "dispatch/finalize_local.hpp"
#include "dispatch/weight_on_input.hpp"

namespace conclave::dispatch {

ExchangePrepareFinalize::ExchangePrepareFinalize(std::string name, const PartContext& context)
    : name_(std::move(name)),
      moe_(context.problem.moe),
      owners_(context.problem),
      row_format_(context.problem),
      rank_(static_cast<int>(context.problem.parallel.ep_rank)),
      communicator_(context.communicator) {
  if (communicator_ == nullptr && num_ranks() == 1) {
    alone_ = make_self_communicator();
    communicator_ = alone_.get();
  }
  if (communicator_ == nullptr) return;
  require(communicator_->size() == num_ranks() && communicator_->rank() == rank_,
          "{}: given rank {} of {} by the communicator, expected rank {} of {} (ep_rank, ep_size)", name_,
          communicator_->rank(), communicator_->size(), rank_, num_ranks());
}

Communicator& ExchangePrepareFinalize::communicator() const {
  if (communicator_ == nullptr)
    fail(ErrorKind::invalid_argument, "{}: made without a communicator, expected one of {} ranks", name_, num_ranks());
  return *communicator_;
}

Prepared ExchangePrepareFinalize::prepare(const PrepareInput& input, Arena& arena, Stream stream) {
  Pending<Prepared> pending = prepare_async(input, arena, stream);
  pending.hook();
  return pending.finish();
}

void ExchangePrepareFinalize::finalize(const FinalizeInput& input, const TensorView& output, Stream stream) {
  Pending<Done> pending = finalize_async(input, output, stream);
  pending.hook();
  pending.finish();
}

Prepared ExchangePrepareFinalize::prepared_rows(const TensorView& rows, const TensorView& received,
                                                const TensorView& scales) const {
  Prepared prepared;
  prepared.activations = rows;
  if (!row_format_.coded()) return prepared;
  if (row_format_.transposes())
    for (std::int64_t row = 0; row < rows.size(0); ++row)
      row_format_.copy_scales(received.at(row).data, scales.at(row));
  prepared.scales = scales;
  return prepared;
}

void ExchangePrepareFinalize::pack_picks(const PrepareInput& input, std::int64_t token, std::int32_t* ids,
                                         float* weights) const {
  for (std::int64_t pick = 0; pick < input.routing.topk_ids.size(1); ++pick) {
    ids[pick] = static_cast<std::int32_t>(expert_of(input.routing, token, pick));
    weights[pick] = router_weight(input.routing, token, pick);
  }
}

std::int64_t ExchangePrepareFinalize::expert_of(const Routing& routing, std::int64_t token, std::int64_t pick) const {
  const TensorView& ids = routing.topk_ids;
  const std::int64_t at = token * ids.stride(0) + pick * ids.stride(1);
  const std::int64_t id = ids.dtype == DType::i64 ? ids.as<std::int64_t>()[at] : ids.as<std::int32_t>()[at];
  return owners_.rank_of(id) < 0 ? -1 : id;
}

void check_exchange(const PrepareInput& input, const MoeConfig& moe) {
  check_prepare(input, moe);
  const ConstTensorView ids = input.routing.topk_ids;
  if (ids.dtype != DType::i32 && ids.dtype != DType::i64)
    fail(ErrorKind::invalid_argument, "topk_ids: given {}, expected i32 or i64", ids);
  // Every rank must know how wide the rows of all others are.
  if (ids.size(1) != moe.num_slots())
    fail(ErrorKind::invalid_argument, "topk_ids: given {}, expected {} columns on every rank", ids, moe.num_slots());
  if (ids.size(0) > moe.max_num_tokens)
    fail(ErrorKind::invalid_argument, "hidden_states: {} tokens, planned for at most {} of each rank", ids.size(0),
         moe.max_num_tokens);
}

ConstTensorView partial_rows(const FinalizeInput& input, const Routing& dispatched, const MoeConfig& moe,
                             const TensorView& partial, Stream stream) {
  const std::int64_t rows = dispatched.topk_ids.size(0);
  if (input.expert_output.kind != ExpertOutputKind::reduced) {
    FinalizeInput local = input;
    local.routing = dispatched;
    finalize_local(local, moe, partial, stream);
    return partial;
  }
  const TensorView& given = input.expert_output.rows;
  if (given.rank != 2 || given.size(0) != rows || given.size(1) != partial.size(1) || !given.is_contiguous())
    fail(ErrorKind::invalid_argument, "expert_output: given {}, expected contiguous [{}, {}]", given, rows,
         partial.size(1));
  return given;
}

}  // namespace conclave::dispatch
