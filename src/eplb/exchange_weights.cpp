// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: the plan and this rank's tensors. Out: the same tensors with the target placement's experts. One tensor at a
// time; what arrives waits in a buffer until everything has been sent, since a slot that receives may be one that
// another rank still reads.
#include <algorithm>
#include <cstring>

#include "base/error.hpp"
#include "base/tensor_format.hpp"
#include "conclave/eplb.hpp"

namespace conclave {
namespace {

class TensorExchange {
 public:
  TensorExchange(const EplbExchange& plan, const TensorView& tensor, Communicator& communicator)
      : plan_(plan),
        base_(tensor.as<std::byte>()),
        stride_(bytes_of(tensor.dtype, tensor.stride(0))),
        bytes_(entry_bytes(tensor)),
        communicator_(communicator),
        send_(static_cast<std::size_t>(communicator.size())),
        receive_(static_cast<std::size_t>(communicator.size())) {
    std::int64_t arriving = 0;
    for (const EplbMove& move : plan.moves) arriving += move.to_rank == communicator.rank() ? 1 : 0;
    staging_ = Tensor(DType::u8, {arriving * bytes_});
  }

  void run() {
    std::byte* next = staging_.as<std::byte>();
    for (std::int32_t round = 0; round < plan_.num_rounds; ++round) next = exchange_round(round, next);
    next = staging_.as<std::byte>();
    for (std::int32_t round = 0; round < plan_.num_rounds; ++round)
      for (const EplbMove& move : plan_.moves)
        if (move.round == round && move.to_rank == communicator_.rank()) {
          std::memcpy(entry(move.to_slot), next, static_cast<std::size_t>(bytes_));
          next += bytes_;
        }
    for (const EplbCopy& copy : plan_.copies)
      if (copy.rank == communicator_.rank())
        std::memcpy(entry(copy.to_slot), entry(copy.from_slot), static_cast<std::size_t>(bytes_));
  }

 private:
  static std::int64_t entry_bytes(const TensorView& tensor) {
    return bytes_of(tensor.dtype, tensor.size(0) == 0 ? 0 : tensor.numel() / tensor.size(0));
  }
  std::byte* entry(std::int64_t slot) const { return base_ + slot * stride_; }

  /// Every rank takes part in every round, with nothing to say in most: exchanges are matched by their order.
  std::byte* exchange_round(std::int32_t round, std::byte* next) {
    std::fill(send_.begin(), send_.end(), SendMessage{});
    std::fill(receive_.begin(), receive_.end(), ReceiveMessage{});
    for (const EplbMove& move : plan_.moves) {
      if (move.round != round) continue;
      if (move.from_rank == communicator_.rank())
        send_[static_cast<std::size_t>(move.to_rank)] = {entry(move.from_slot), bytes_};
      if (move.to_rank == communicator_.rank()) {
        receive_[static_cast<std::size_t>(move.from_rank)] = {next, bytes_};
        next += bytes_;
      }
    }
    communicator_.start({.name = "eplb weights", .send = send_, .receive = receive_}).wait();
    return next;
  }

  const EplbExchange& plan_;
  std::byte* base_;
  std::int64_t stride_;
  std::int64_t bytes_;
  Communicator& communicator_;
  std::vector<SendMessage> send_;
  std::vector<ReceiveMessage> receive_;
  Tensor staging_;
};

/// Slots that the plan names, on this rank: one more than the highest.
std::int64_t slots_needed(const EplbExchange& plan, int rank) {
  std::int64_t slots = 0;
  const auto use = [&](int owner, std::int64_t slot) {
    if (owner == rank) slots = std::max(slots, slot + 1);
  };
  for (const EplbMove& move : plan.moves) {
    use(move.from_rank, move.from_slot);
    use(move.to_rank, move.to_slot);
  }
  for (const EplbCopy& copy : plan.copies) {
    use(copy.rank, copy.from_slot);
    use(copy.rank, copy.to_slot);
  }
  return slots;
}

}  // namespace

void exchange_weights(const EplbExchange& plan, std::span<const TensorView> tensors, Communicator& communicator) {
  const std::int64_t slots = slots_needed(plan, communicator.rank());
  for (const TensorView& tensor : tensors) {
    require(tensor.rank >= 1 && tensor.size(0) >= slots, "weights to exchange: given {}, expected at least {} slots",
            tensor, slots);
    require(tensor.rank == 1 || tensor.size(0) == 0 || tensor.at(0).is_contiguous(),
            "weights to exchange: given {}, expected contiguous entries", tensor);
  }
  for (const EplbMove& move : plan.moves)
    require(std::max(move.from_rank, move.to_rank) < communicator.size(),
            "exchange plan: a move from rank {} to {}, expected ranks below {}", move.from_rank, move.to_rank,
            communicator.size());
  for (const TensorView& tensor : tensors) TensorExchange(plan, tensor, communicator).run();
}

}  // namespace conclave
