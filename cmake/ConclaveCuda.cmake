# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
#
# Sets CONCLAVE_HAS_CUDA, and enables the language where there is a compiler that works. Included at the top level,
# because a language must be enabled in a folder above every target that it is linked into.

set(CONCLAVE_HAS_CUDA OFF)
if(NOT CONCLAVE_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "CONCLAVE_CUDA: given ${CONCLAVE_CUDA}, expected AUTO, ON or OFF")
endif()
if(NOT CONCLAVE_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(CONCLAVE_HAS_CUDA ON)
  elseif(CONCLAVE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "CONCLAVE_CUDA is ON, but no working CUDA compiler was found (CUDACXX or nvcc on PATH)")
  endif()
endif()

# The GPUs that a file is compiled for. Hopper's own instructions need the "a" architecture and exist nowhere else: files
# that use them are called *_sm90.cu. Everything else runs on every GPU from sm_80 on, as a binary for sm_80 and sm_90 and
# as PTX for what comes after.
function(conclave_cuda_architectures file)
  if(file MATCHES "_sm90\\.cu$")
    set(flags -gencode=arch=compute_90a,code=sm_90a)
  else()
    set(flags -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=sm_90
              -gencode=arch=compute_90,code=compute_90)
  endif()
  set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "${flags}")
endfunction()

# The CUDA flags of one target. CMake 3.25 does not know -std=c++20 for CUDA: CUDA_STANDARD 20 is dropped silently.
function(conclave_cuda_options target)
  set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES OFF)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 --expt-relaxed-constexpr -lineinfo>
    "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xcompiler=-Wall,-Wextra,-Wshadow>"
    "$<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${CONCLAVE_WERROR}>>:SHELL:-Werror=all-warnings -Xcompiler=-Werror>")
endfunction()

# Sources of the CUDA back end in a layer, and what stands in for them in a build without it.
function(conclave_cuda_sources folder)
  cmake_parse_arguments(arg "" "" "CUDA;NO_CUDA" ${ARGN})
  if(NOT CONCLAVE_HAS_CUDA)
    if(arg_NO_CUDA)
      target_sources(conclave_${folder} PRIVATE ${arg_NO_CUDA})
    endif()
    return()
  endif()
  foreach(file IN LISTS arg_CUDA)
    if(file MATCHES "\\.cu$")
      conclave_cuda_architectures(${file})
    endif()
  endforeach()
  target_sources(conclave_${folder} PRIVATE ${arg_CUDA})
  target_link_libraries(conclave_${folder} PRIVATE CUDA::cudart_static)
  conclave_cuda_options(conclave_${folder})
endfunction()
