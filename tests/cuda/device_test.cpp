// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What device.hpp promises: errors without a GPU; memory, copies, graphs and times with one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "conclave/workspace.hpp"
#include "support/gpu.hpp"

namespace conclave {
namespace {

using ::testing::HasSubstr;

template <class F>
std::string error_of(ErrorKind kind, F&& f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  return "no error";
}

TEST(CudaErrors, ADeviceThatIsNotThereIsUnsupported) {
  const auto index = static_cast<int>(cuda_devices().size());
  const std::string reason = has_cuda_back_end() ? "" : "this build has no CUDA back end";
  EXPECT_THAT(error_of(ErrorKind::unsupported, [&] { cuda_facts(index); }), HasSubstr(reason));
  EXPECT_THAT(error_of(ErrorKind::unsupported, [&] { CudaStream{index}; }), HasSubstr(reason));
  const Device there{DeviceType::cuda, index};
  EXPECT_THAT(error_of(ErrorKind::unsupported, [&] { Tensor(DType::f32, {3}, there); }), HasSubstr(reason));
  Workspace workspace(there);
  EXPECT_THAT(error_of(ErrorKind::unsupported, [&] { workspace.region({}, 100); }), HasSubstr(reason));
}

TEST(CudaErrors, CopiesBetweenTwoDevicesOrShapesAreRefusedEverywhere) {
  const auto executor = make_inline_executor();
  const Stream cpu = Stream::cpu(*executor);
  float values[6] = {};
  const TensorView row(values, DType::f32, {6}), elsewhere(values, DType::f32, {6}, {DeviceType::cuda, 0});
  EXPECT_THAT(error_of(ErrorKind::invalid_argument, [&] { copy(row, elsewhere, cpu); }), HasSubstr("cuda:0"));
  EXPECT_THAT(error_of(ErrorKind::invalid_argument, [&] { copy(row, row.narrow(0, 0, 5), cpu); }), HasSubstr("[5]"));
}

TEST(HostCopy, StridesOfBothEndsAreFollowed) {
  const auto executor = make_inline_executor();
  std::vector<std::int32_t> from(24), to(24, -1);
  std::iota(from.begin(), from.end(), 0);
  const ConstTensorView source(from.data(), DType::i32, {4, 6});
  const TensorView target(to.data(), DType::i32, {4, 6});
  copy(source.narrow(1, 1, 2).at(2), target.narrow(1, 3, 2).at(1), Stream::cpu(*executor));
  EXPECT_EQ(to[9], 13);
  EXPECT_EQ(to[10], 14);
  EXPECT_EQ(std::count(to.begin(), to.end(), -1), 22);
}

class CudaDevice : public test::OnGpu {};

TEST_F(CudaDevice, StridedCopiesComeBackAsTheyWent) {
  const Tensor host(DType::i32, {5, 7, 3});
  std::iota(host.as<std::int32_t>(), host.as<std::int32_t>() + 105, 1000);
  const Tensor there = poisoned(DType::i32, {5, 9, 4});
  const TensorView part = there.view().narrow(1, 1, 7).narrow(2, 0, 3);
  copy(host, part, stream());
  const Tensor back = down(there);
  for (int a = 0; a < 5; ++a)
    for (int b = 0; b < 9; ++b)
      for (int c = 0; c < 4; ++c) {
        const bool inside = b >= 1 && b < 8 && c < 3;
        ASSERT_EQ(back.as<std::int32_t>()[(a * 9 + b) * 4 + c], inside ? 1000 + (a * 7 + b - 1) * 3 + c : -1);
      }
  // Elements that are not neighbours, between two places on the device.
  const Tensor elements = poisoned(DType::i32, {5, 1});
  copy(part.narrow(1, 2, 1).narrow(2, 1, 1).narrow(0, 0, 5),
       TensorView(elements.view().data, DType::i32, {5, 1, 1}, stream().device), stream());
  for (int a = 0; a < 5; ++a) EXPECT_EQ(down(elements).as<std::int32_t>()[a], 1000 + (a * 7 + 2) * 3 + 1);
}

TEST_F(CudaDevice, WorkspaceRegionsArePoisonedAndAligned) {
  Workspace workspace(stream().device);
  const auto region = workspace.region({}, 1000);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(region.data()) % kWorkspaceAlignment, 0U);
  workspace.poison();
  Arena arena(region, workspace.device());
  const TensorView view = arena.take(DType::i32, {100});
  EXPECT_EQ(view.device, stream().device);
  EXPECT_EQ(down(view).as<std::int32_t>()[99], -1);
}

TEST_F(CudaDevice, AGraphRepeatsWhatItRecordedWithNewValues) {
  const Tensor from = poisoned(DType::f32, {3}), to = poisoned(DType::f32, {3});
  const CudaGraph graph(stream(), [&] { copy(from, to, stream()); });
  for (float value : {1.5F, -2.0F}) {
    const Tensor host(DType::f32, {3});
    std::fill_n(host.as<float>(), 3, value);
    copy(host, from, stream());
    EXPECT_GT(seconds_on(stream(), [&] { graph.launch(stream()); }), 0.0);
    EXPECT_EQ(down(to).as<float>()[2], value);
  }
  // Waiting cannot be recorded; the stream works afterwards.
  EXPECT_THROW(CudaGraph(stream(), [&] { down(to); }), Error);
  EXPECT_EQ(down(to).as<float>()[0], -2.0F);
}

}  // namespace
}  // namespace conclave
