// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: rows [M, H] that experts have weighted and reduced. Out: the same rows in `output`, copied only if they are not
// there already, rounded if the types differ.
#include <algorithm>

#include "base/error.hpp"
#include "base/tensor_format.hpp"
#include "cpu/float_convert.hpp"
#include "cpu/parallel_for.hpp"
#include "reduce/check.hpp"
#include "reduce/cuda/rows.hpp"
#include "reduce/kinds.hpp"

namespace conclave::reduce {
namespace {

/// Below this many elements a parallel region costs more than the copy.
constexpr std::int64_t kElementsWorthThreads = 16384;
/// Elements converted at once: small enough to stay in the first-level cache.
constexpr std::int64_t kConverted = 512;

void copy_row(const ConstTensorView& from, const TensorView& to) {
  if (from.dtype == to.dtype) {
    std::copy_n(from.as<std::byte>(), from.bytes(), to.as<std::byte>());
    return;
  }
  float chunk[kConverted];
  for (std::int64_t h = 0; h < from.size(0); h += kConverted) {
    const std::int64_t n = std::min(kConverted, from.size(0) - h);
    cpu::load_f32(from.narrow(0, h, n).data, from.dtype, n, chunk);
    cpu::store_f32(chunk, to.dtype, n, to.narrow(0, h, n).data);
  }
}

class NoOp final : public WeightAndReduce {
 public:
  WeightAndReduceKind kind() const noexcept override { return WeightAndReduceKind::no_op; }

  void apply(const ReduceInput& input, const TensorView& output, Stream stream) const override {
    const ConstTensorView& rows = input.rows;
    check_floats("rows", rows, 2);
    check_floats("output", output, 2);
    require(rows.size(0) == output.size(0) && rows.size(1) == output.size(1),
            "output: given {}, expected the shape of rows {}", output, rows);
    if (rows.data == output.data && rows.dtype == output.dtype && rows.stride(0) == output.stride(0)) return;
    if (stream.device.type == DeviceType::cuda) return copy_rows_on_cuda(rows, output, stream);
    const std::int64_t grain =
        std::max<std::int64_t>(1, kElementsWorthThreads / std::max<std::int64_t>(1, rows.size(1)));
    cpu::parallel_for(*stream.executor, rows.size(0), grain, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t m = begin; m < end; ++m) copy_row(rows.at(m), output.at(m));
    });
  }
};

}  // namespace

const WeightAndReduce& no_op() {
  static const NoOp object;
  return object;
}

}  // namespace conclave::reduce
