// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// A test's GPU: a stream of the first one, or a skip with the reason.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <span>

#include "conclave/device.hpp"
#include "conclave/error.hpp"

namespace conclave::test {

/// Skips every test of a suite where there is no GPU.
class OnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_devices().empty())
      GTEST_SKIP() << (has_cuda_back_end() ? "no GPU is visible" : "this build has no CUDA back end");
    owner_.emplace(0);
  }
  Stream stream() const { return owner_->stream(); }

  Tensor up(const ConstTensorView& host) const {
    Tensor there(host.dtype, extents(host), stream().device);
    copy(host, there, stream());
    return there;
  }
  Tensor down(const ConstTensorView& there) const {
    Tensor host(there.dtype, extents(there));
    copy(there, host, stream());
    return host;
  }
  /// Every byte 0xFF: NaN in every float type, -1 in every integer type.
  Tensor poisoned(DType dtype, std::initializer_list<std::int64_t> shape) const {
    const Tensor host(dtype, shape);
    std::memset(host.view().data, 0xFF, static_cast<std::size_t>(host.view().bytes()));
    return up(host);
  }

 private:
  static std::span<const std::int64_t> extents(const ConstTensorView& v) {
    return {v.shape.data(), static_cast<std::size_t>(v.rank)};
  }
  std::optional<CudaStream> owner_;
};

}  // namespace conclave::test
