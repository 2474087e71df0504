// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// steps.hpp in a build without CUDA.
#include "cuda/no_back_end.hpp"
#include "kernel/cuda/steps.hpp"

namespace conclave::on_cuda {

void convert_routing(const Routing&, const Routing&, Stream) {
  cuda::no_back_end();
}
void split_zero_experts(const Routing&, std::int64_t, const Routing&, const TensorView&, Stream) {
  cuda::no_back_end();
}
void finish_shared_routing(const Routing&, bool, Stream) {
  cuda::no_back_end();
}
void epilogue(const EpilogueInput&, const TensorView&, Stream) {
  cuda::no_back_end();
}
void check_ids(const ConstTensorView&, std::int64_t, const TensorView&, Stream) {
  cuda::no_back_end();
}

}  // namespace conclave::on_cuda
