// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The checks of check_input.hpp.
#include "experts/cuda/check_input.hpp"

#include "base/error.hpp"
#include "base/tensor_format.hpp"

namespace conclave::experts::cuda {
namespace {

void check_matrix(const std::string& part, const char* what, const ConstTensorView& view, DType dtype,
                  std::int64_t rows, std::int64_t columns, Stream stream) {
  const bool shape = view.rank == 2 && view.size(0) == rows && view.size(1) == columns && view.dtype == dtype &&
                     (columns <= 1 || view.stride(1) == 1);
  if (!shape)
    fail(ErrorKind::invalid_argument, "{}: {}: given {}, expected {} [{}, {}] with contiguous columns", part, what,
         to_string(view), name_of(dtype), rows, columns);
  if (view.device != stream.device && view.numel() > 0)
    fail(ErrorKind::invalid_argument, "{}: {}: given memory of {}, expected {}, the stream's device", part, what,
         to_string(view.device), to_string(stream.device));
}

}  // namespace

void check_input(const std::string& part, const Problem& problem, const ExpertsInput& input,
                 const ExpertsBuffers& buffers, Stream stream) {
  const MoeConfig& c = problem.moe;
  const std::int64_t tokens = input.hidden_states.rank == 2 ? input.hidden_states.size(0) : -1;
  check_matrix(part, "hidden_states", input.hidden_states, c.dtype, tokens, c.expert_width(), stream);
  check_matrix(part, "topk_ids", input.topk_ids, DType::i32, tokens, c.num_slots(), stream);
  check_matrix(part, "topk_weights", input.topk_weights, DType::f32, tokens, c.num_slots(), stream);
  check_matrix(part, "output", buffers.output, c.dtype, tokens, c.expert_width(), stream);
  if (!input.topk_ids.is_contiguous() || !input.topk_weights.is_contiguous())
    fail(ErrorKind::invalid_argument, "{}: topk_ids {} and topk_weights {}, expected both contiguous", part,
         to_string(input.topk_ids), to_string(input.topk_weights));
}

}  // namespace conclave::experts::cuda
