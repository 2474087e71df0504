// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The copies of places.hpp.
#include "verify/places.hpp"

#include "conclave/device.hpp"
#include "verify/element.hpp"

namespace conclave::verify_detail {
namespace {

/// From the first element of a view to its last one, gaps included, as bytes.
TensorView span_of(TensorView view) {
  std::int64_t elements = view.numel() == 0 ? 0 : 1;
  for (int d = 0; d < view.rank && elements > 0; ++d) elements += (view.size(d) - 1) * view.stride(d);
  return TensorView(view.data, DType::u8, {bytes_of(view.dtype, elements)}, view.device);
}

TensorView writable(const ConstTensorView& view) {
  TensorView out;
  out.data = const_cast<void*>(view.data);
  out.dtype = view.dtype;
  out.device = view.device;
  out.rank = view.rank;
  out.shape = view.shape;
  out.strides = view.strides;
  return out;
}

}  // namespace

TensorView Places::put(const TensorView& host) {
  if (stream_.device.type == DeviceType::cpu) return host;
  TensorView there = host;
  there.device = stream_.device;
  there.data = nullptr;
  if (host.numel() == 0) return there;
  TensorView clone;
  const Tensor image = clone_strided(host, clone);
  const TensorView bytes = span_of(clone);
  copies_.push_back({Tensor(DType::u8, {bytes.size(0)}, stream_.device), host});
  copy(bytes, copies_.back().memory, stream_);
  there.data = copies_.back().memory.view().data;
  return there;
}

ConstTensorView Places::put(const ConstTensorView& host) {
  return put(writable(host));
}

void Places::put(std::optional<ConstTensorView>& view) {
  if (view) view = put(*view);
}

void Places::put(RouterInput& input) {
  input.logits = put(input.logits);
  put(input.e_score_correction_bias);
  put(input.token_ids);
  put(input.hash_table);
  put(input.hidden_states);
}

void Places::take_back(const TensorView& host) {
  for (Copy& copied : copies_)
    if (copied.host.data == host.data) {
      copy(copied.memory, span_of(host), stream_);
      copied.taken_back = true;
    }
}

bool Places::unchanged() const {
  for (const Copy& copied : copies_) {
    if (copied.taken_back) continue;
    const Tensor bytes = bytes_on_host(copied.memory, 0, copied.memory.view().size(0), stream_);
    ConstTensorView now = copied.host;
    now.data = bytes.view().data;
    if (!bitwise_equal(now, copied.host)) return false;
  }
  return true;
}

Tensor poisoned(DType dtype, std::initializer_list<std::int64_t> shape, Stream stream) {
  const Tensor host(dtype, shape);
  poison(host);
  if (stream.device.type == DeviceType::cpu) return host;
  const Tensor there(dtype, shape, stream.device);
  copy(host, there, stream);
  return there;
}

Tensor bytes_on_host(const Tensor& tensor, std::int64_t begin, std::int64_t count, Stream stream) {
  const Tensor host(DType::u8, {count});
  copy(tensor.view().narrow(0, begin, count), host, stream);
  return host;
}

}  // namespace conclave::verify_detail
