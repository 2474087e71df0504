# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
#
# Installs headers, library, command, CMake package and pkg-config file. Every path inside the installed files is
# relative to them, so the tree may be moved.
include(CMakePackageConfigHelpers)

set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/conclave)
set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(TARGETS conclave EXPORT conclaveTargets FILE_SET HEADERS)
install(EXPORT conclaveTargets NAMESPACE conclave:: DESTINATION ${config_dir})
if(TARGET conclave_cli)
  install(TARGETS conclave_cli)
endif()

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/conclaveConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/conclaveConfig.cmake INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/conclaveConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/conclaveConfig.cmake ${PROJECT_BINARY_DIR}/conclaveConfigVersion.cmake
        DESTINATION ${config_dir})

# A static library leaves its own dependencies to whoever links it; a shared one has them inside.
set(private_libs "-lboost_context -pthread")
if(CONCLAVE_HAS_MPI)
  list(JOIN MPI_CXX_LIBRARIES " " mpi_libs)
  string(APPEND private_libs " ${mpi_libs}")
endif()
if(CONCLAVE_HAS_CUDA)
  string(APPEND private_libs " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt -ldl")
endif()
get_target_property(library_type conclave TYPE)
if(library_type STREQUAL "STATIC_LIBRARY")
  set(pc_libs "-lconclave ${private_libs}")
  set(pc_libs_private "")
else()
  set(pc_libs "-lconclave")
  set(pc_libs_private "${private_libs}")
endif()
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX BASE_DIRECTORY ${CMAKE_INSTALL_PREFIX}/${pkgconfig_dir}
           OUTPUT_VARIABLE pc_prefix)
configure_file(${PROJECT_SOURCE_DIR}/cmake/conclave.pc.in ${PROJECT_BINARY_DIR}/conclave.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/conclave.pc DESTINATION ${pkgconfig_dir})
