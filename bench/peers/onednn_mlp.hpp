// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The MoE layer after routing as a caller of oneDNN writes it: for each expert that has rows, gather them, one matmul
// for gate and up, SiLU and product, one matmul down, weighted sum into the output. Weights are reordered once into the
// layout that oneDNN asks for; primitives are made once for each number of rows.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "oneapi/dnnl/dnnl.hpp"

namespace peer {

struct Sizes {
  std::int64_t num_experts, top_k, hidden_size, intermediate_size;
};

/// ids [num_tokens, top_k], distinct in a row; weights alike.
struct Routing {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

class OneDnnMoe {
 public:
  /// Random weights of the given type. Throws dnnl::error where this CPU cannot multiply that type.
  OneDnnMoe(const Sizes& sizes, bool bf16, std::uint64_t seed);
  ~OneDnnMoe();

  /// output [num_tokens, hidden_size] f32 = the layer applied to the stored random input.
  void run(const Routing& routing, std::int64_t num_tokens, std::vector<float>& output);
  std::int64_t weight_bytes() const;

 private:
  struct Product;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace peer
