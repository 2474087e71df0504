// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The checks of check_input.hpp.
#include "experts/cuda/check_input.hpp"

#include "base/error.hpp"
#include "base/tensor_format.hpp"

namespace conclave::experts::cuda {
namespace {

void check_place(const std::string& part, const char* what, const ConstTensorView& view, Stream stream) {
  if (view.device != stream.device && view.numel() > 0)
    fail(ErrorKind::invalid_argument, "{}: {}: given memory of {}, expected {}, the stream's device", part, what,
         to_string(view.device), to_string(stream.device));
}

void check_matrix(const std::string& part, const char* what, const ConstTensorView& view, DType dtype,
                  std::int64_t rows, std::int64_t columns, Stream stream) {
  const bool shape = view.rank == 2 && view.size(0) == rows && view.size(1) == columns && view.dtype == dtype &&
                     (columns <= 1 || view.stride(1) == 1);
  if (!shape)
    fail(ErrorKind::invalid_argument, "{}: {}: given {}, expected {} [{}, {}] with contiguous columns", part, what,
         to_string(view), name_of(dtype), rows, columns);
  check_place(part, what, view, stream);
}

}  // namespace

void check_input(const std::string& part, const Problem& problem, const ExpertsInput& input, Stream stream) {
  const MoeConfig& c = problem.moe;
  const std::int64_t tokens = input.hidden_states.rank == 2 ? input.hidden_states.size(0) : -1;
  check_matrix(part, "hidden_states", input.hidden_states, c.dtype, tokens, c.expert_width(), stream);
  check_matrix(part, "topk_ids", input.topk_ids, DType::i32, tokens, c.num_slots(), stream);
  check_matrix(part, "topk_weights", input.topk_weights, DType::f32, tokens, c.num_slots(), stream);
  if (!input.topk_ids.is_contiguous() || !input.topk_weights.is_contiguous())
    fail(ErrorKind::invalid_argument, "{}: topk_ids {} and topk_weights {}, expected both contiguous", part,
         to_string(input.topk_ids), to_string(input.topk_weights));
}

void check_input(const std::string& part, const Problem& problem, const ExpertsInput& input,
                 const ExpertsBuffers& buffers, Stream stream) {
  check_input(part, problem, input, stream);
  check_matrix(part, "output", buffers.output, problem.moe.dtype, input.hidden_states.size(0),
               problem.moe.expert_width(), stream);
}

void check_batched_input(const std::string& part, const Problem& problem, const ExpertsInput& input,
                         const PackedWeights& weights, Stream stream) {
  const ConstTensorView& x = input.hidden_states;
  const std::int64_t width = problem.moe.expert_width();
  const bool dense = x.rank == 3 && (x.size(0) <= 1 || x.stride(0) == x.size(1) * x.stride(1));
  if (!dense || x.size(2) != width || x.dtype != problem.moe.dtype || (width > 1 && x.stride(2) != 1))
    fail(ErrorKind::invalid_argument,
         "{}: hidden_states: given {}, expected {} [experts, tokens, {}], dense but for the "
         "stride of rows",
         part, to_string(x), name_of(problem.moe.dtype), width);
  check_place(part, "hidden_states", x, stream);
  if (weights.num_local_experts() > x.size(0))
    fail(ErrorKind::invalid_argument, "{}: hidden_states: given {}, expected room for {} local experts", part,
         to_string(x), weights.num_local_experts());
  if (x.size(0) * x.size(1) > INT32_MAX)
    fail(ErrorKind::invalid_argument, "{}: hidden_states: given {}, expected at most {} rows", part, to_string(x),
         INT32_MAX);
  if (!input.expert_tokens)
    fail(ErrorKind::invalid_argument, "{}: expert_tokens: missing, expected counts of {} local experts", part,
         x.size(0));
  const TensorView& counts = input.expert_tokens->counts;
  if (counts.dtype != DType::i32 || counts.rank != 1 || counts.size(0) != x.size(0) || !counts.is_contiguous())
    fail(ErrorKind::invalid_argument, "{}: expert_tokens: given {}, expected contiguous i32 [{}]", part,
         to_string(counts), x.size(0));
  check_place(part, "expert_tokens", counts, stream);
}

}  // namespace conclave::experts::cuda
