// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The part of copy() that needs no GPU: its checks, and copies from host to host. Linked in every build.
#pragma once

#include "conclave/stream.hpp"

namespace conclave::cuda {

/// Throws Error unless dtype and shape agree and both ends are on the host or on the stream's device.
void check_copy(const ConstTensorView& from, const TensorView& to, const Stream& stream);

void copy_on_host(const ConstTensorView& from, const TensorView& to);

}  // namespace conclave::cuda
