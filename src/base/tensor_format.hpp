// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Views and devices as arguments of require() and fail(): the text is made only when the check fails. to_string() as an
// argument would allocate at every call that succeeds, and run() never allocates.
#pragma once

#include <fmt/format.h>

#include "conclave/tensor.hpp"

template <class Void>
struct fmt::formatter<conclave::BasicTensorView<Void>> : fmt::formatter<fmt::string_view> {
  template <class Context>
  auto format(const conclave::BasicTensorView<Void>& view, Context& context) const {
    return fmt::formatter<fmt::string_view>::format(conclave::to_string(conclave::ConstTensorView(view)), context);
  }
};

template <>
struct fmt::formatter<conclave::Device> : fmt::formatter<fmt::string_view> {
  template <class Context>
  auto format(conclave::Device device, Context& context) const {
    return fmt::formatter<fmt::string_view>::format(conclave::to_string(device), context);
  }
};
