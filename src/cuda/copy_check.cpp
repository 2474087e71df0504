// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Checks of copy(), and its copies from host to host, row by row.
#include "cuda/copy_check.hpp"

#include <algorithm>
#include <cstring>

#include "base/error.hpp"
#include "base/tensor_format.hpp"

namespace conclave::cuda {

void check_copy(const ConstTensorView& from, const TensorView& to, const Stream& stream) {
  // Entries beyond the rank mean nothing: a view of one row keeps what its matrix had there.
  const bool same = from.dtype == to.dtype && from.rank == to.rank &&
                    std::equal(from.shape.begin(), from.shape.begin() + from.rank, to.shape.begin());
  require(same, "copy: given {} and {}, expected one dtype and shape", from, to);
  require(bits_of(from.dtype) >= 8 || (from.is_contiguous() && to.is_contiguous()),
          "copy: given {} to {}, expected packed elements to be contiguous", from, to);
  for (const Device device : {from.device, to.device})
    require(device.type == DeviceType::cpu || device == stream.device, "copy: given {}, and the stream is on {}",
            device, stream.device);
}

void copy_on_host(const ConstTensorView& from, const TensorView& to) {
  if (from.numel() == 0) return;
  if (from.is_contiguous() && to.is_contiguous()) {
    std::memcpy(to.data, from.data, static_cast<std::size_t>(from.bytes()));
    return;
  }
  if (from.rank > 1) {
    for (std::int64_t i = 0; i < from.size(0); ++i) copy_on_host(from.at(i), to.at(i));
    return;
  }
  const auto element = static_cast<std::size_t>(bits_of(from.dtype) / 8);
  for (std::int64_t i = 0; i < from.size(0); ++i)
    std::memcpy(to.as<std::byte>() + bytes_of(to.dtype, i * to.stride(0)),
                from.as<std::byte>() + bytes_of(from.dtype, i * from.stride(0)), element);
}

}  // namespace conclave::cuda
