# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
#
# conclave_layer(<folder> SOURCES ... [PRIVATE libs...]): one object library for one folder under src/.
# conclave_parts(<folder> <Type> <part>...): the ordered list of a stage's parts, best first. Part cpu/f32_avx2 of folder
#   experts lives in src/experts/cpu/f32_avx2.cpp and is registered as "experts/cpu_f32_avx2"; part naive/batched is made by
#   `Entry<Type> conclave::parts::experts_naive_batched()`. Instruction sets follow from the end of the name.
#   [ENGINES <namespace> <header>]: a part for an instruction set defines no entry but a constant kF32Avx2 of type Engine
#   in this namespace of conclave; entry_of(engine), which the header declares, makes the entry of it.
# conclave_library(): the library `conclave` made of all of them.

# The flags of every target of ours, never of a consumer. Fields that designated initialisers leave out are meant to
# keep their defaults.
function(conclave_compile_options target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
                             -Wno-missing-field-initializers>
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${CONCLAVE_WERROR}>>:-Werror>)
  # One rounding for each operation that the source names: contraction would make the same row differ between a
  # scalar tail and a vector body. Kernels that want FMA call it.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
  if(CONCLAVE_SANITIZE)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${CONCLAVE_SANITIZE}
                           -fno-omit-frame-pointer -fno-sanitize-recover=all>)
    target_link_options(${target} PUBLIC -fsanitize=${CONCLAVE_SANITIZE})
  endif()
endfunction()

function(conclave_layer folder)
  cmake_parse_arguments(arg "" "" "SOURCES;PRIVATE" ${ARGN})
  set(target conclave_${folder})
  add_library(${target} OBJECT ${arg_SOURCES})
  conclave_compile_options(${target})
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR}/include PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${target} PRIVATE conclave_fmt ${arg_PRIVATE})
  set_property(GLOBAL APPEND PROPERTY CONCLAVE_LAYERS ${target})
endfunction()

# Compile flags by the suffix of a file's name: what a variant may execute is visible in its name. Selection asks the
# CPU before it runs one (CpuFeatures). x86-64 only; elsewhere these parts are left out.
# Traps, both checked by tests/layers/check_isa.py: with these flags even a constructor of std::string uses the wide
# registers, so code that runs on every CPU (the maker of an Entry, supports()) belongs in a file without a suffix; and
# an inline function that is emitted here may be the copy that the linker keeps for the whole program, so kernels live
# in anonymous namespaces and call nothing from headers that is not inlined.
function(conclave_isa_flags file out)
  set(avx2 -mavx2 -mfma -mf16c)
  set(avx512 ${avx2} -mavx512f -mavx512bw -mavx512vl -mavx512dq -mprefer-vector-width=512)
  # GCC 12 takes the deliberately undefined pass-through operand inside its own AVX-512 headers for a mistake of ours.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND avx512 -Wno-uninitialized -Wno-maybe-uninitialized)
  endif()
  if(file MATCHES "_amx(_[a-z0-9]+)?$")
    set(${out} ${avx512} -mavx512bf16 -mamx-tile -mamx-bf16 -mamx-int8 PARENT_SCOPE)
  elseif(file MATCHES "_avx512_bf16$")
    set(${out} ${avx512} -mavx512bf16 PARENT_SCOPE)
  elseif(file MATCHES "_avx512_vnni$")
    set(${out} ${avx512} -mavx512vnni PARENT_SCOPE)
  elseif(file MATCHES "_avx512$")
    set(${out} ${avx512} PARENT_SCOPE)
  elseif(file MATCHES "_avx2$")
    set(${out} ${avx2} PARENT_SCOPE)
  else()
    set(${out} "" PARENT_SCOPE)
  endif()
endfunction()

# Adds sources whose names end in an instruction set to a layer, with that set's flags.
function(conclave_isa_sources folder)
  foreach(file IN LISTS ARGN)
    get_filename_component(stem ${file} NAME_WE)
    conclave_isa_flags(${stem} flags)
    if(flags AND NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
      continue()
    endif()
    target_sources(conclave_${folder} PRIVATE ${file})
    set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "${flags}")
  endforeach()
endfunction()

# f32_avx2 -> kF32Avx2.
function(conclave_constant_name stem out)
  set(name k)
  string(REPLACE "_" ";" words ${stem})
  foreach(word IN LISTS words)
    string(SUBSTRING ${word} 0 1 first)
    string(SUBSTRING ${word} 1 -1 rest)
    string(TOUPPER ${first} first)
    string(APPEND name ${first}${rest})
  endforeach()
  set(${out} ${name} PARENT_SCOPE)
endfunction()

function(conclave_parts folder type)
  cmake_parse_arguments(arg "" "" "ENGINES" ${ARGN})
  set(space "")
  set(include "")
  set(engines "")
  set(declarations "")
  set(calls "")
  set(parts ${arg_UNPARSED_ARGUMENTS})
  if(arg_ENGINES)
    list(POP_FRONT arg_ENGINES space header)
    set(parts ${arg_ENGINES})
    set(include "#include \"${header}\"\n")
  endif()
  foreach(part IN LISTS parts)
    # Parts of the CUDA back end are in a list only where the build has it.
    if(part MATCHES "^cuda/" AND NOT CONCLAVE_HAS_CUDA)
      continue()
    endif()
    conclave_isa_flags(${part} flags)
    if(flags AND NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
      continue()
    endif()
    if(flags AND space)
      get_filename_component(stem ${part} NAME)
      conclave_constant_name(${stem} engine)
      string(APPEND engines "extern const Engine ${engine};\n")
      string(APPEND calls "  list.push_back(${space}::entry_of(${space}::${engine}));\n")
    else()
      string(MAKE_C_IDENTIFIER ${folder}_${part} maker)
      string(APPEND declarations "Entry<${type}> ${maker}();\n")
      string(APPEND calls "  list.push_back(parts::${maker}());\n")
    endif()
    conclave_isa_sources(${folder} ${part}.cpp)
  endforeach()
  if(engines)
    set(engines "namespace ${space} {\n${engines}}  // namespace ${space}\n")
  endif()
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/${folder}_list.cpp @ONLY CONTENT
"// Generated from src/${folder}/CMakeLists.txt, which is the list: edit that.
#include \"conclave/registry.hpp\"
@include@
namespace conclave {
@engines@
namespace parts {
@declarations@}  // namespace parts

std::vector<Entry<@type@>> builtin_@folder@();
std::vector<Entry<@type@>> builtin_@folder@() {
  std::vector<Entry<@type@>> list;
@calls@  return list;
}

}  // namespace conclave
")
  target_sources(conclave_${folder} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/${folder}_list.cpp)
endfunction()

function(conclave_library)
  get_property(layers GLOBAL PROPERTY CONCLAVE_LAYERS)
  add_library(conclave)
  foreach(layer IN LISTS layers)
    target_sources(conclave PRIVATE $<TARGET_OBJECTS:${layer}>)
  endforeach()
  conclave_compile_options(conclave)
  # 0.x promises no ABI between minor versions, so the minor number is part of the name that programs are linked to.
  set_target_properties(conclave PROPERTIES LINKER_LANGUAGE CXX VERSION ${PROJECT_VERSION}
                        SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
                        VERIFY_INTERFACE_HEADER_SETS ${PROJECT_IS_TOP_LEVEL})
  file(GLOB headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/conclave/*.hpp)
  target_sources(conclave PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/include FILES ${headers})
  target_link_libraries(conclave PRIVATE Boost::context Threads::Threads)
  if(CONCLAVE_HAS_MPI)
    target_link_libraries(conclave PRIVATE MPI::MPI_CXX)
  endif()
  if(CONCLAVE_HAS_CUDA)
    # Static, so that a program starts on a machine without the toolkit; the driver is found at run time.
    target_link_libraries(conclave PRIVATE CUDA::cudart_static)
  endif()
  add_library(conclave::conclave ALIAS conclave)
endfunction()
