// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The checks of kernel_checks.hpp.
#include "kernel/kernel_checks.hpp"

#include <cstddef>

#include "base/error.hpp"
#include "base/tensor_format.hpp"

namespace conclave {
namespace {

struct Range {
  const std::byte* begin;
  const std::byte* end;
};

Range range_of(const ConstTensorView& v) noexcept {
  const auto* begin = static_cast<const std::byte*>(v.data);
  if (v.data == nullptr || v.numel() == 0) return {begin, begin};
  std::int64_t last = 0;
  for (int d = 0; d < v.rank; ++d) last += (v.size(d) - 1) * v.stride(d);
  return {begin, begin + bytes_of(v.dtype, last + 1)};
}

std::int64_t id_at(const ConstTensorView& ids, std::int64_t row, std::int64_t slot) {
  const std::int64_t at = row * ids.stride(0) + slot * ids.stride(1);
  return ids.dtype == DType::i64 ? ids.as<std::int64_t>()[at] : ids.as<std::int32_t>()[at];
}

}  // namespace

void check_stream(const Stream& stream, Device planned) {
  require(stream.device == planned, "stream: on {}, and the layer is planned for {}", stream.device, planned);
  require(planned.type != DeviceType::cpu || stream.executor != nullptr,
          "stream: no executor, expected Stream::cpu(executor)");
}

void check_matrix(const char* name, const ConstTensorView& view, std::int64_t rows, std::int64_t cols, DType dtype,
                  Device device) {
  require(view.rank == 2 && view.size(0) == rows && view.size(1) == cols && view.dtype == dtype,
          "{}: given {}, expected {}[{}, {}]", name, view, name_of(dtype), rows, cols);
  require(view.device == device, "{}: given on {}, expected on {}", name, view.device, device);
  require(cols <= 1 || view.stride(1) == 1, "{}: column stride {}, expected 1", name, view.stride(1));
  require(rows <= 1 || view.stride(0) >= cols, "{}: row stride {}, expected at least {}", name, view.stride(0), cols);
  require(view.data != nullptr || rows == 0, "{}: null data for {} rows", name, rows);
}

void check_routing(const Routing& routing, std::int64_t num_tokens, std::int64_t num_slots, Device device) {
  const ConstTensorView ids = routing.topk_ids;
  const ConstTensorView weights = routing.topk_weights;
  require(ids.dtype == DType::i32 || ids.dtype == DType::i64, "topk_ids: given {}, expected i32 or i64", ids);
  require(is_compute_dtype(weights.dtype), "topk_weights: given {}, expected f32, bf16 or f16", weights);
  check_matrix("topk_ids", ids, num_tokens, num_slots, ids.dtype, device);
  check_matrix("topk_weights", weights, num_tokens, num_slots, weights.dtype, device);
}

void check_ids(const ConstTensorView& ids, std::int64_t num_experts) {
  for (std::int64_t row = 0; row < ids.size(0); ++row)
    for (std::int64_t slot = 0; slot < ids.size(1); ++slot) {
      const std::int64_t id = id_at(ids, row, slot);
      require(id >= -1 && id < num_experts, "topk_ids[{}, {}]: given {}, expected -1 or 0 to {}", row, slot, id,
              num_experts - 1);
    }
}

void check_expert_map(const ConstTensorView& map, std::int64_t num_experts, std::int64_t num_local_experts) {
  require(map.rank == 1 && map.size(0) == num_experts && map.dtype == DType::i32 && map.is_contiguous(),
          "expert_map: given {}, expected contiguous i32[{}]", map, num_experts);
  if (map.device.type != DeviceType::cpu) return;
  for (std::int64_t id = 0; id < num_experts; ++id) {
    const std::int32_t slot = map.as<std::int32_t>()[id];
    require(slot >= -1 && slot < num_local_experts, "expert_map[{}]: given {}, expected -1 or 0 to {}", id, slot,
            num_local_experts - 1);
  }
}

bool overlap(const ConstTensorView& a, const ConstTensorView& b) noexcept {
  const Range x = range_of(a);
  const Range y = range_of(b);
  return x.begin < y.end && y.begin < x.end;
}

void check_aliasing(const ConstTensorView& input, const ConstTensorView& output, bool in_place) {
  if (!overlap(input, output)) return;
  require(in_place, "output overlaps hidden_states, expected separate memory (in_place was not planned)");
  require(input.data == output.data && input.shape == output.shape && input.strides == output.strides,
          "in_place: output {} overlaps hidden_states {} without being the same rows", output, input);
}

}  // namespace conclave
