// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Checks of dense(), and the choice of its kernel by dtypes and alignment alone, so that the bits never depend on M.
#include "cuda/dense.hpp"

#include "base/error.hpp"
#include "base/tensor_format.hpp"
#include "cuda/dense_kernels.hpp"

namespace conclave::cuda {
namespace {

bool aligned(const ConstTensorView& v) {
  const bool rows = v.size(0) <= 1 || v.stride(0) % 8 == 0;
  return rows && v.size(1) % 8 == 0 && reinterpret_cast<std::uintptr_t>(v.data) % 16 == 0;
}

void check_operands(const ConstTensorView& a, const ConstTensorView& w, const std::optional<ConstTensorView>& bias,
                    const ConstTensorView& out, const Stream& stream) {
  require(a.rank == 2 && w.rank == 2 && out.rank == 2 && a.size(1) == w.size(1) && out.size(0) == a.size(0) &&
              out.size(1) == w.size(0),
          "dense: given {} and {} for {}, expected [M, K], [N, K] and [M, N]", a, w, out);
  require(!bias || (bias->rank == 1 && bias->size(0) == w.size(0)), "dense: bias: given {}, expected [{}]",
          bias.value_or(out), w.size(0));
  for (const ConstTensorView& v : {a, w, out, bias.value_or(out)}) {
    require(is_compute_dtype(v.dtype), "dense: given {}, expected f32, bf16 or f16", v);
    require(v.size(-1) <= 1 || v.stride(-1) == 1, "dense: given {}, expected contiguous columns", v);
    require(v.device == stream.device, "dense: given {}, expected it on {}", v, stream.device);
    require(v.size(0) < INT32_MAX && v.size(-1) < INT32_MAX, "dense: given {}, expected extents of 31 bits", v);
  }
}

}  // namespace

void dense(const ConstTensorView& a, const ConstTensorView& w, const std::optional<ConstTensorView>& bias,
           const TensorView& out, Stream stream) {
  check_operands(a, w, bias, out, stream);
  if (out.numel() == 0) return;
  DenseProduct p{a.data, w.data, bias ? bias->data : nullptr, out.data, a.stride(0), w.stride(0), out.stride(0)};
  p.m = static_cast<std::int32_t>(a.size(0));
  p.n = static_cast<std::int32_t>(w.size(0));
  p.k = static_cast<std::int32_t>(a.size(1));
  p.a_dtype = a.dtype;
  p.w_dtype = w.dtype;
  p.bias_dtype = bias ? bias->dtype : DType::f32;
  p.out_dtype = out.dtype;
  auto* const native = static_cast<cudaStream_t>(stream.native);
  if (a.dtype == w.dtype && a.dtype != DType::f32 && aligned(a) && aligned(w))
    dense_on_tensor_cores(p, stream.device.index, native);
  else
    dense_element_by_element(p, native);
}

}  // namespace conclave::cuda
