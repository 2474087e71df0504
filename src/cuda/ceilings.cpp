// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// measure_cuda_ceilings() of device.hpp: large copies, and large square products by cuBLASLt. That library is opened at
// run time, if it is there: a program that multiplies by itself must not fail to start, or grow by 400 MB, for the sake
// of one number.
#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <string>

#include "base/error.hpp"
#include "conclave/device.hpp"
#include "cuda/check.hpp"
#include "cuda/current_device.hpp"

namespace conclave {
namespace {

/// Far beyond any L2, and a whole number of pages.
constexpr std::int64_t kCopyBytes = std::int64_t{1} << 30;
/// Square products of this size fill every tile shape of the library without a ragged edge.
constexpr std::int64_t kSize = 8192;
constexpr std::int64_t kLibraryWorkspace = 64 << 20;
constexpr int kRounds = 10;

double copy_bandwidth(Stream stream) {
  const Tensor from(DType::u8, {kCopyBytes}, stream.device), to(DType::u8, {kCopyBytes}, stream.device);
  double best = 1e9;
  for (int round = 0; round < kRounds; ++round)
    best = std::min(best, seconds_on(stream, [&] { copy(from, to, stream); }));
  return 2.0 * static_cast<double>(kCopyBytes) / best;
}

struct Library {
  void* handle = nullptr;
  ~Library() {
    if (handle != nullptr) dlclose(handle);
  }
};

/// One function of the library by its name and type.
#define CONCLAVE_FIND(name) const auto name##_ = reinterpret_cast<decltype(&name)>(dlsym(library, #name))

/// 0 and a note if the library refuses.
double product_flops(void* library, DType dtype, Stream stream, std::string& note) {
  CONCLAVE_FIND(cublasLtCreate);
  CONCLAVE_FIND(cublasLtDestroy);
  CONCLAVE_FIND(cublasLtMatmulDescCreate);
  CONCLAVE_FIND(cublasLtMatmulDescDestroy);
  CONCLAVE_FIND(cublasLtMatmulDescSetAttribute);
  CONCLAVE_FIND(cublasLtMatrixLayoutCreate);
  CONCLAVE_FIND(cublasLtMatrixLayoutDestroy);
  CONCLAVE_FIND(cublasLtMatmulPreferenceCreate);
  CONCLAVE_FIND(cublasLtMatmulPreferenceDestroy);
  CONCLAVE_FIND(cublasLtMatmulPreferenceSetAttribute);
  CONCLAVE_FIND(cublasLtMatmulAlgoGetHeuristic);
  CONCLAVE_FIND(cublasLtMatmul);
  if (cublasLtCreate_ == nullptr || cublasLtMatmul_ == nullptr || cublasLtMatmulAlgoGetHeuristic_ == nullptr) {
    note = "cuBLASLt lacks a function";
    return 0;
  }
  const cudaDataType type = dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_16F;
  const Tensor a(dtype, {kSize, kSize}, stream.device), b(dtype, {kSize, kSize}, stream.device);
  const Tensor c(dtype, {kSize, kSize}, stream.device), scratch(DType::u8, {kLibraryWorkspace}, stream.device);
  // The power that a product draws, and so its clock, depends on the bits: not zeros, but numbers near 1 that differ.
  Tensor numbers(dtype, {kSize, kSize});
  std::uint32_t state = 1;
  for (std::int64_t i = 0; i < numbers.view().numel(); ++i) {
    state = state * 1664525U + 1013904223U;
    const std::uint32_t sign_and_mantissa = state >> 16 & (dtype == DType::bf16 ? 0x807FU : 0x83FFU);
    numbers.as<std::uint16_t>()[i] =
        static_cast<std::uint16_t>(sign_and_mantissa | (dtype == DType::bf16 ? 0x3C00U : 0x2400U));
  }
  copy(numbers, a, stream);
  copy(numbers, b, stream);

  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t layout = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  const auto size = static_cast<std::uint64_t>(kSize);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  const auto workspace = static_cast<std::size_t>(kLibraryWorkspace);
  cublasLtMatmulHeuristicResult_t choice{};
  int found = 0;
  const float one = 1, zero = 0;
  bool ok = cublasLtCreate_(&handle) == CUBLAS_STATUS_SUCCESS &&
            cublasLtMatmulDescCreate_(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
            cublasLtMatmulDescSetAttribute_(product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)) ==
                CUBLAS_STATUS_SUCCESS &&
            cublasLtMatrixLayoutCreate_(&layout, type, size, size, kSize) == CUBLAS_STATUS_SUCCESS &&
            cublasLtMatmulPreferenceCreate_(&preference) == CUBLAS_STATUS_SUCCESS &&
            cublasLtMatmulPreferenceSetAttribute_(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                                  sizeof(workspace)) == CUBLAS_STATUS_SUCCESS &&
            cublasLtMatmulAlgoGetHeuristic_(handle, product, layout, layout, layout, layout, preference, 1, &choice,
                                            &found) == CUBLAS_STATUS_SUCCESS &&
            found > 0;
  double best = 1e9;
  for (int round = 0; ok && round < kRounds; ++round)
    best =
        std::min(best, seconds_on(stream, [&] {
                   ok = cublasLtMatmul_(handle, product, &one, a.view().data, layout, b.view().data, layout, &zero,
                                        c.view().data, layout, c.view().data, layout, &choice.algo, scratch.view().data,
                                        workspace, static_cast<cudaStream_t>(stream.native)) == CUBLAS_STATUS_SUCCESS;
                 }));
  synchronize(stream);
  if (preference != nullptr) cublasLtMatmulPreferenceDestroy_(preference);
  if (layout != nullptr) cublasLtMatrixLayoutDestroy_(layout);
  if (product != nullptr) cublasLtMatmulDescDestroy_(product);
  if (handle != nullptr) cublasLtDestroy_(handle);
  if (!ok) {
    note = "cuBLASLt refused the product";
    return 0;
  }
  const auto n = static_cast<double>(kSize);
  return 2 * n * n * n / best;
}

#undef CONCLAVE_FIND

}  // namespace

CudaCeilings measure_cuda_ceilings(int index) {
  const cuda::CurrentDevice here(Device{DeviceType::cuda, index});
  const CudaStream owner(index);
  CudaCeilings ceilings;
  ceilings.bytes_per_second = copy_bandwidth(owner.stream());
  Library library;
  for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"})
    if (library.handle == nullptr) library.handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library.handle == nullptr) {
    ceilings.note = "no libcublasLt.so.13 or .12 was found: arithmetic peaks were not measured";
    return ceilings;
  }
  ceilings.bf16_flops = product_flops(library.handle, DType::bf16, owner.stream(), ceilings.note);
  ceilings.f16_flops = product_flops(library.handle, DType::f16, owner.stream(), ceilings.note);
  return ceilings;
}

}  // namespace conclave
