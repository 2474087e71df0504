// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// tail.hpp in a build without CUDA.
#include "cuda/no_back_end.hpp"
#include "tail/cuda/tail.hpp"

namespace conclave::tail {

void run_on_cuda(const TailConfig&, const TailInput&, const TailOutput&, const TensorView&, Stream) {
  cuda::no_back_end();
}
void finish_on_cuda(const MoeOutput&, const TensorView&, Stream) {
  cuda::no_back_end();
}

}  // namespace conclave::tail
