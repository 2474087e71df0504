# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
#
# Sets CONCLAVE_HAS_MPI. MPI is optional: without it another source file says so.

set(CONCLAVE_HAS_MPI OFF)
if(NOT CONCLAVE_MPI MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "CONCLAVE_MPI: given ${CONCLAVE_MPI}, expected AUTO, ON or OFF")
endif()
if(NOT CONCLAVE_MPI STREQUAL "OFF")
  # The C functions from C++; the C++ bindings that MPI withdrew are left out.
  set(MPI_CXX_SKIP_MPICXX ON)
  find_package(MPI QUIET COMPONENTS CXX)
  if(MPI_CXX_FOUND)
    set(CONCLAVE_HAS_MPI ON)
  elseif(CONCLAVE_MPI STREQUAL "ON")
    message(FATAL_ERROR "CONCLAVE_MPI is ON, but no MPI was found (Debian: libopenmpi-dev)")
  endif()
endif()
