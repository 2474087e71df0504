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
#include "peer.hpp"

namespace peer {

class OneDnnMoe {
 public:
  /// Random weights of the given type. Throws dnnl::error where this CPU cannot multiply that type.
  OneDnnMoe(const Sizes& sizes, bool bf16, std::uint64_t seed);
  ~OneDnnMoe();

  /// The layer applied to a stored random input.
  void run(const Routing& routing, std::int64_t num_tokens);

 private:
  struct Product;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace peer
