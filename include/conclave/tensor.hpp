// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Tensors as DLPack shapes them: pointer, dtype, device, shape and strides (in elements, 64-bit). Views own nothing
// and never allocate; Tensor owns page-aligned memory that can be given back piece by piece.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <type_traits>

#include "conclave/dtype.hpp"

namespace conclave {

enum class DeviceType : std::uint8_t { cpu, cuda };

/// One place where memory lives and work runs; `index` counts GPUs and is 0 on the CPU.
struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};

/// "cpu" or "cuda:0".
std::string to_string(Device device);

/// Enough for [layers, experts, rows, groups, columns]; views are copied by value, so the arrays stay inline.
inline constexpr int kMaxRank = 5;

/// A view of elements that someone else owns. Void is `void` or `const void`.
template <class Void>
struct BasicTensorView {
  Void* data = nullptr;  ///< Null is legal where numel() is 0.
  DType dtype = DType::f32;
  Device device{};
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> strides{};  ///< In elements; packed sub-byte types are always contiguous.

  BasicTensorView() = default;

  /// A contiguous (row-major) view.
  BasicTensorView(Void* pointer, DType type, std::span<const std::int64_t> dims, Device where = {})
      : data(pointer), dtype(type), device(where), rank(static_cast<int>(dims.size())) {
    std::int64_t stride = 1;
    for (int d = rank - 1; d >= 0; --d) {
      shape[static_cast<std::size_t>(d)] = dims[static_cast<std::size_t>(d)];
      strides[static_cast<std::size_t>(d)] = stride;
      stride *= dims[static_cast<std::size_t>(d)];
    }
  }
  BasicTensorView(Void* pointer, DType type, std::initializer_list<std::int64_t> dims, Device where = {})
      : BasicTensorView(pointer, type, std::span<const std::int64_t>(dims.begin(), dims.size()), where) {}

  /// A mutable view is usable wherever a const one is asked for.
  template <class Other>
  requires(std::is_const_v<Void> && !std::is_const_v<Other>) BasicTensorView(const BasicTensorView<Other>& other)
      : data(other.data),
        dtype(other.dtype),
        device(other.device),
        rank(other.rank),
        shape(other.shape),
        strides(other.strides) {}

  /// Extent of dimension `d`; negative counts from the end.
  std::int64_t size(int d) const noexcept { return shape[static_cast<std::size_t>(d < 0 ? d + rank : d)]; }
  std::int64_t stride(int d) const noexcept { return strides[static_cast<std::size_t>(d < 0 ? d + rank : d)]; }

  std::int64_t numel() const noexcept {
    std::int64_t n = 1;
    for (int d = 0; d < rank; ++d) n *= size(d);
    return n;
  }
  /// Bytes of the elements if they were contiguous.
  std::int64_t bytes() const noexcept { return bytes_of(dtype, numel()); }

  bool is_contiguous() const noexcept {
    std::int64_t expected = 1;
    for (int d = rank - 1; d >= 0; --d) {
      if (size(d) != 1 && stride(d) != expected) return false;
      expected *= size(d);
    }
    return true;
  }

  /// The pointer as T*. The caller has checked the dtype: T may be a storage type (std::uint16_t for bf16).
  template <class T>
  auto* as() const noexcept {
    using Element = std::conditional_t<std::is_const_v<Void>, const T, T>;
    return static_cast<Element*>(data);
  }

  /// The sub-view at index `i` of the first dimension (rank drops by one). No bounds check. Whole-byte strides only.
  BasicTensorView at(std::int64_t i) const noexcept {
    BasicTensorView v = *this;
    v.data = offset_bytes(bytes_of(dtype, i * stride(0)));
    v.rank = rank - 1;
    for (int d = 0; d < v.rank; ++d) {
      v.shape[static_cast<std::size_t>(d)] = size(d + 1);
      v.strides[static_cast<std::size_t>(d)] = stride(d + 1);
    }
    // Entries beyond the rank stay zero, so that equal views have equal arrays.
    v.shape[static_cast<std::size_t>(v.rank)] = 0;
    v.strides[static_cast<std::size_t>(v.rank)] = 0;
    return v;
  }

  /// `length` indices from `start` in dimension `d`. No bounds check.
  BasicTensorView narrow(int d, std::int64_t start, std::int64_t length) const noexcept {
    BasicTensorView v = *this;
    v.data = offset_bytes(bytes_of(dtype, start * stride(d)));
    v.shape[static_cast<std::size_t>(d)] = length;
    return v;
  }

 private:
  Void* offset_bytes(std::int64_t bytes) const noexcept {
    using Byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;
    return data == nullptr ? nullptr : static_cast<Byte*>(data) + bytes;
  }
};

using TensorView = BasicTensorView<void>;
using ConstTensorView = BasicTensorView<const void>;

/// "bf16[8, 4096]" plus the strides where the view is not contiguous: what error messages print.
std::string to_string(const ConstTensorView& view);

/// Host memory in whole pages, zeroed on first touch. `discard` gives pages back while the object lives, so that a
/// caller who gives weights up pays for them once, not twice, while they are repacked. On a GPU: device memory whose
/// contents are undefined, and which `discard` leaves as it is.
class Storage {
 public:
  /// Throws Error(out_of_memory) with the byte count. 0 bytes is legal.
  explicit Storage(std::int64_t bytes, Device device = {});
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  std::byte* data() const noexcept { return data_; }
  std::int64_t bytes() const noexcept { return bytes_; }
  Device device() const noexcept { return device_; }

  /// Frees every page that lies wholly inside [begin, begin + bytes). Its contents are lost. Ranges outside the
  /// storage are ignored.
  void discard(const void* begin, std::int64_t bytes) noexcept;

 private:
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
  Device device_;
};

/// A contiguous tensor that owns its memory, on the host unless another device is named. Copies share it.
class Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, std::span<const std::int64_t> shape, Device device = {});
  Tensor(DType dtype, std::initializer_list<std::int64_t> shape, Device device = {})
      : Tensor(dtype, std::span<const std::int64_t>(shape.begin(), shape.size()), device) {}

  TensorView view() const noexcept { return view_; }
  operator TensorView() const noexcept { return view_; }
  operator ConstTensorView() const noexcept { return view_; }
  explicit operator bool() const noexcept { return storage_ != nullptr; }
  const std::shared_ptr<Storage>& storage() const noexcept { return storage_; }
  template <class T>
  T* as() const noexcept {
    return view_.template as<T>();
  }

 private:
  std::shared_ptr<Storage> storage_;
  TensorView view_;
};

}  // namespace conclave
