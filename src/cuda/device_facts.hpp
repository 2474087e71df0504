// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The GPUs that this process may use, as plain facts. A build without CUDA links no_cuda.cpp instead of
// device_facts.cu.
#pragma once

#include <vector>

#include "conclave/config.hpp"

namespace conclave {

/// One entry for each visible GPU, in the runtime's order, without measured ceilings. Empty where there is no GPU, no
/// driver, or no CUDA in this build; never an error, because asking is harmless.
std::vector<DeviceFacts> cuda_devices();

}  // namespace conclave
