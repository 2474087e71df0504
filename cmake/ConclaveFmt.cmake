# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
#
# conclave_fmt: fmt for files of ours, never for a consumer's. Debian ships no static fmt, and header-only use makes the
# build three times as long, so src/base/fmt_definitions.cpp compiles it into the library, under a namespace of its own:
# a program that has another fmt, or another version of it, sees no symbol twice. Where the version's list of
# definitions is not known, it is header-only after all, which is slower to build and the same otherwise.
find_package(fmt REQUIRED)

add_library(conclave_fmt INTERFACE)
if(fmt_VERSION VERSION_GREATER_EQUAL 9 AND fmt_VERSION VERSION_LESS 10)
  set(CONCLAVE_FMT_SOURCE ${PROJECT_SOURCE_DIR}/src/base/fmt_definitions.cpp)
  target_include_directories(conclave_fmt SYSTEM INTERFACE
    $<TARGET_PROPERTY:fmt::fmt-header-only,INTERFACE_INCLUDE_DIRECTORIES>)
  target_compile_definitions(conclave_fmt INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:FMT_BEGIN_NAMESPACE=namespace fmt { inline namespace conclave_private {>"
    "$<$<COMPILE_LANGUAGE:CXX>:FMT_END_NAMESPACE=}}>")
else()
  set(CONCLAVE_FMT_SOURCE "")
  target_link_libraries(conclave_fmt INTERFACE fmt::fmt-header-only)
endif()
