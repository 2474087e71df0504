// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Everything, in the order in which data flows.
#pragma once

// clang-format off: the order of these includes is the order of the data.
#include "conclave/version.hpp"
// What tensors are and where work runs.
#include "conclave/dtype.hpp"
#include "conclave/error.hpp"
#include "conclave/function_ref.hpp"
#include "conclave/stream.hpp"
#include "conclave/support.hpp"
#include "conclave/tensor.hpp"
#include "conclave/trace.hpp"
#include "conclave/workspace.hpp"
// The problem.
#include "conclave/activation.hpp"
#include "conclave/config.hpp"
#include "conclave/expert_map.hpp"
#include "conclave/quant.hpp"
#include "conclave/quantise.hpp"
#include "conclave/routing.hpp"
#include "conclave/weights.hpp"
// Many ranks.
#include "conclave/comm.hpp"
#include "conclave/eplb.hpp"
#include "conclave/shard.hpp"
// The stages.
#include "conclave/experts.hpp"
#include "conclave/flow.hpp"
#include "conclave/pending.hpp"
#include "conclave/prepare_finalize.hpp"
#include "conclave/reduce.hpp"
#include "conclave/router.hpp"
#include "conclave/tail.hpp"
// Their composition.
#include "conclave/kernel.hpp"
#include "conclave/layer.hpp"
#include "conclave/micro_batches.hpp"
#include "conclave/plan.hpp"
#include "conclave/registry.hpp"
// Around it.
#include "conclave/case_file.hpp"
#include "conclave/ceilings.hpp"
#include "conclave/checkpoint.hpp"
#include "conclave/device.hpp"
#include "conclave/quantise_checkpoint.hpp"
#include "conclave/safetensors.hpp"
#include "conclave/verify.hpp"
// clang-format on
