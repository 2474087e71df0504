// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// cuda_devices() against what the operating system shows: each GPU of the NVIDIA driver has a node /dev/nvidia<N>.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "conclave/device.hpp"

namespace conclave {
namespace {

std::size_t device_nodes() {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/dev")) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("nvidia") && name.size() > 6 && name.find_first_not_of("0123456789", 6) == std::string::npos)
      ++count;
  }
  return count;
}

TEST(CudaDevices, ThereIsNoneWithoutADriverOrWithoutCuda) {
  if (CONCLAVE_HAS_CUDA == 0 || !std::filesystem::exists("/dev/nvidiactl")) {
    EXPECT_TRUE(cuda_devices().empty());
  } else if (std::getenv("CUDA_VISIBLE_DEVICES") == nullptr) {
    EXPECT_EQ(cuda_devices().size(), device_nodes());
  }
}

TEST(CudaDevices, EachIsNamedByItsIndexAndHasSizes) {
  const auto devices = cuda_devices();
  for (std::size_t i = 0; i < devices.size(); ++i) {
    EXPECT_EQ(to_string(devices[i].device), "cuda:" + std::to_string(i));
    EXPECT_FALSE(devices[i].name.empty());
    EXPECT_GT(devices[i].num_threads, 0);
    EXPECT_GE(devices[i].l2_bytes, 1 << 20);
    EXPECT_FALSE(devices[i].cpu.avx2);
  }
}

TEST(CudaDevices, AskingTwiceAnswersTheSame) {
  EXPECT_EQ(cuda_devices(), cuda_devices());
}

}  // namespace
}  // namespace conclave
