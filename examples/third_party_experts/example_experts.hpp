// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The one thing that the kernel's users see: an entry for a registry.
#pragma once

#include "conclave/registry.hpp"

/// "experts/example_f32": SwiGLU experts in f32 for the CPU.
conclave::Entry<conclave::Experts> example_f32();
