// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a MoeOutput. Out: this rank's plain output [M, H].
#include <algorithm>

#include "base/error.hpp"
#include "base/tensor_format.hpp"
#include "conclave/tail.hpp"
#include "cpu/float_convert.hpp"
#include "cpu/parallel_for.hpp"
#include "cuda/current_device.hpp"
#include "tail/check.hpp"
#include "tail/cuda/tail.hpp"
#include "tail/open_sum.hpp"

namespace conclave {

void finish(const MoeOutput& moe, const TensorView& output, Stream stream) {
  require(output.rank == 2, "output: given {}, expected [num_tokens, hidden_size]", output);
  const std::int64_t hidden_size = output.size(1);
  const std::int64_t num_tokens = tail::check_open(moe, hidden_size);
  tail::check_floats("output", output, num_tokens, hidden_size);
  tail::check_places(moe, stream);
  tail::check_place("output", output, stream);
  const cuda::CurrentDevice here(stream.device);
  if (stream.device.type == DeviceType::cuda) return tail::finish_on_cuda(moe, output, stream);
  // Columns are cut too, so that all threads have work for a single token.
  const std::int64_t chunks = (hidden_size + tail::kChunk - 1) / tail::kChunk;
  const std::int64_t grain = tail::kProductsWorthThreads / (tail::kChunk * tail::picks_of(moe));
  cpu::parallel_for(*stream.executor, num_tokens * chunks, grain, [&](std::int64_t begin, std::int64_t end, int) {
    float sum[tail::kChunk];
    for (std::int64_t item = begin; item < end; ++item) {
      const std::int64_t h = item % chunks * tail::kChunk;
      const std::int64_t n = std::min(tail::kChunk, hidden_size - h);
      tail::open_sum(moe, item / chunks, h, n, sum);
      cpu::store_f32(sum, output.dtype, n, output.at(item / chunks).narrow(0, h, n).data);
    }
  });
}

}  // namespace conclave
