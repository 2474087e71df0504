// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// run() does not allocate: every operator new of this program is counted while it runs.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "kernel/layer_fixture.hpp"

namespace {

std::atomic<std::int64_t> allocations{0};

void* counted(std::size_t size, std::size_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  const std::size_t rounded = (size + alignment - 1) / alignment * alignment;
  void* p = std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

}  // namespace

// Never inlined: GCC takes the one that it inlined, seen beside a call of the other, for a mismatched pair.
[[gnu::noinline]] void* operator new(std::size_t size) {
  return counted(size, alignof(std::max_align_t));
}
[[gnu::noinline]] void* operator new[](std::size_t size) {
  return counted(size, alignof(std::max_align_t));
}
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t a) {
  return counted(size, static_cast<std::size_t>(a));
}
[[gnu::noinline]] void* operator new[](std::size_t size, std::align_val_t a) {
  return counted(size, static_cast<std::size_t>(a));
}
[[gnu::noinline]] void operator delete(void* p) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete[](void* p) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete[](void* p, std::size_t) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete[](void* p, std::align_val_t) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete[](void* p, std::size_t, std::align_val_t) noexcept {
  std::free(p);
}

namespace conclave {
namespace {

TEST(NoAllocation, TheCounterCounts) {
  const std::int64_t before = allocations.load();
  std::vector<int> v(10);
  EXPECT_GT(allocations.load(), before) << v.size();
}

TEST(NoAllocation, RunOfEveryPart) {
  const Registry registry = builtin_registry();
  auto executor = make_executor(2);
  const Stream stream = Stream::cpu(*executor);
  for (DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const auto& entry : registry.experts.entries()) {
      Problem p = test::small_problem(dtype);
      if (!entry.monolithic) p.moe.shared = {9, true};
      PlanOptions options;
      options.experts = entry.name;
      std::optional<Plan> planned;
      try {
        planned = plan(p, registry, options);
      } catch (const Error&) {
        continue;
      }
      const test::LayerTensors t = test::random_layer(p, 1);
      MoeLayer layer(*planned, registry, t.weights, stream);
      // Rows of a wider tensor: the text of such a view is longer than a string holds without allocating, so that a
      // check which formats its message before it fails is caught.
      const Tensor wide = test::random_tensor(dtype, {37, 113}, 2);
      const Tensor wide_out(dtype, {37, 113});
      const ConstTensorView x = ConstTensorView(wide).narrow(1, 9, 40);
      const TensorView y = wide_out.view().narrow(1, 9, 40);
      Workspace workspace;
      workspace.region({}, layer.plan().workspace_bytes);
      workspace.lock();
      LayerInput input;
      input.hidden_states = x;
      layer.run(input, y, workspace, stream);
      for (std::int64_t tokens : {37, 1, 8, 0}) {
        input.hidden_states = x.narrow(0, 0, tokens);
        const std::int64_t before = allocations.load();
        layer.run(input, y.narrow(0, 0, tokens), workspace, stream);
        EXPECT_EQ(allocations.load() - before, 0) << entry.name << " " << name_of(dtype) << " " << tokens;
      }
    }
}

}  // namespace
}  // namespace conclave
