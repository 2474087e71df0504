// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Tensors of the host where a part runs: themselves on the CPU, on a GPU copies with the same strides whose gaps are
// NaN. Problems, oracles and comparisons stay on the host.
#pragma once

#include <optional>
#include <vector>

#include "conclave/router.hpp"
#include "conclave/stream.hpp"

namespace conclave::verify_detail {

class Places {
 public:
  explicit Places(Stream stream) : stream_(stream) {}

  ConstTensorView put(const ConstTensorView& host);
  TensorView put(const TensorView& host);
  void put(std::optional<ConstTensorView>& view);
  void put(RouterInput& input);

  /// What parts wrote into the copy of `host` comes back into it; gaps too.
  void take_back(const TensorView& host);
  /// Every copy that was not taken back has what its original has.
  bool unchanged() const;

 private:
  struct Copy {
    Tensor memory;         ///< On the GPU, gaps included.
    ConstTensorView host;  ///< The original.
    bool taken_back = false;
  };
  Stream stream_;
  std::vector<Copy> copies_;
};

/// Memory of the stream's device in which every byte is 0xFF.
Tensor poisoned(DType dtype, std::initializer_list<std::int64_t> shape, Stream stream);

/// `count` bytes of a tensor of u8, from `begin` on, on the host.
Tensor bytes_on_host(const Tensor& tensor, std::int64_t begin, std::int64_t count, Stream stream);

}  // namespace conclave::verify_detail
