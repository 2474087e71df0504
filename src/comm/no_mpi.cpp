// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// A build without MPI says so.
#include "base/error.hpp"
#include "conclave/comm.hpp"

namespace conclave {

bool has_mpi() noexcept {
  return false;
}

std::unique_ptr<Communicator> make_mpi_communicator(const CommOptions& /*options*/) {
  fail(ErrorKind::unsupported, "mpi: this build has none; install libopenmpi-dev and build again");
}

}  // namespace conclave
