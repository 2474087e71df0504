# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
#
# Choices that only the top-level project may make: never included when Conclave is a part of another build.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

# A preset cannot ask whether ccache exists.
find_program(CONCLAVE_CCACHE ccache)
mark_as_advanced(CONCLAVE_CCACHE)
if(CONCLAVE_CCACHE)
  foreach(language CXX CUDA)
    if(NOT DEFINED CMAKE_${language}_COMPILER_LAUNCHER)
      set(CMAKE_${language}_COMPILER_LAUNCHER ${CONCLAVE_CCACHE})
    endif()
  endforeach()
endif()

set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
