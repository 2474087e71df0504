// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Marks a function that kernels call as well as the host, so that a formula is written once. Nothing to a compiler that
// does not know CUDA.
#pragma once

#ifdef __CUDACC__
#define CONCLAVE_HOST_DEVICE __host__ __device__
#else
#define CONCLAVE_HOST_DEVICE
#endif
