// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The asynchronous forms of a part that has none: an Error that names it. A caller asks supports_async() first.
#include "base/error.hpp"
#include "conclave/prepare_finalize.hpp"

namespace conclave {

Pending<Prepared> ModularPrepareFinalize::prepare_async(const PrepareInput& /*input*/, Arena& /*arena*/,
                                                        Stream /*stream*/) {
  fail(ErrorKind::invalid_argument, "{}: prepare_async called, but it does not support async", name());
}

Pending<Done> ModularPrepareFinalize::finalize_async(const FinalizeInput& /*input*/, const TensorView& /*output*/,
                                                     Stream /*stream*/) {
  fail(ErrorKind::invalid_argument, "{}: finalize_async called, but it does not support async", name());
}

}  // namespace conclave
