// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What every function of the CUDA back end does in a build without it. Defined in such a build only.
#pragma once

namespace conclave::cuda {

/// Throws Error(unsupported).
[[noreturn]] void no_back_end();

}  // namespace conclave::cuda
