// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Printing of devices and views, and the owning Tensor.
#include "conclave/tensor.hpp"

#include "base/error.hpp"

namespace conclave {

std::string to_string(Device device) {
  return device.type == DeviceType::cpu ? "cpu" : fmt::format("cuda:{}", device.index);
}

std::string to_string(const ConstTensorView& view) {
  std::string shape;
  std::string strides;
  for (int d = 0; d < view.rank; ++d) {
    shape += fmt::format("{}{}", d == 0 ? "" : ", ", view.size(d));
    strides += fmt::format("{}{}", d == 0 ? "" : ", ", view.stride(d));
  }
  std::string text = fmt::format("{}[{}]", name_of(view.dtype), shape);
  if (!view.is_contiguous()) text += fmt::format(" strides [{}]", strides);
  if (view.device.type != DeviceType::cpu) text += " on " + to_string(view.device);
  return text;
}

Tensor::Tensor(DType dtype, std::span<const std::int64_t> shape, Device device) {
  require(shape.size() <= static_cast<std::size_t>(kMaxRank), "tensor: rank {}, expected at most {}", shape.size(),
          kMaxRank);
  for (std::int64_t extent : shape) require(extent >= 0, "tensor: extent {}, expected 0 or more", extent);
  view_ = TensorView(nullptr, dtype, shape, device);
  storage_ = std::make_shared<Storage>(view_.bytes(), device);
  view_.data = storage_->data();
}

}  // namespace conclave
