// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The batched format on a Hopper GPU: layers whose prepare, experts and finalize are its parts against the plain ones
// on the CPU, and the experts parts alone on rows of which only the first ones are valid.
#include <gtest/gtest.h>

#include <algorithm>

#include "conclave/experts.hpp"
#include "experts/cuda/gpu_layers.hpp"

namespace conclave {
namespace {

constexpr const char* kBatched = "experts/cuda_batched_sm90";
constexpr const char* kPlainBatched = "experts/cuda_reference_batched";

class CudaBatched : public test::OnHopper {
 protected:
  std::unique_ptr<ModularExperts> part(const char* name, const Problem& p) const {
    const Registry registry = builtin_registry();
    std::unique_ptr<Experts> made = registry.experts.find(name)->make({p, nullptr});
    return std::unique_ptr<ModularExperts>(dynamic_cast<ModularExperts*>(made.release()));
  }

  /// The rows of expert `e` from `first` on are 0xFF: not just NaN, which rows of NaN give as well.
  static bool is_poison(const Tensor& t, std::int64_t e, std::int64_t first) {
    const TensorView rows = t.view().at(e).narrow(0, first, t.view().size(1) - first);
    const auto* bytes = rows.as<unsigned char>();
    return std::all_of(bytes, bytes + rows.bytes(), [](unsigned char byte) { return byte == 0xFF; });
  }

  /// `rows` [E, T, H] through one part, into poisoned buffers.
  Tensor apply(const char* name, const Problem& p, const Tensor& rows, const Tensor& counts, Stream where) const {
    const auto experts = part(name, p);
    const auto packed = experts->pack(weights(p).experts, where);
    Workspace workspace(where.device);
    Arena measure = Arena::measuring(where.device);
    const std::int64_t max_rows = rows.view().size(1);
    experts->take_buffers(measure, max_rows);
    Arena arena(workspace.region({}, measure.peak()), where.device);
    workspace.poison();
    const ExpertsBuffers buffers = experts->take_buffers(arena, max_rows);
    const bool on_gpu = where.device.type == DeviceType::cuda;
    const Tensor x = on_gpu ? up(rows) : rows, valid = on_gpu ? up(counts) : counts;
    ExpertsInput input;
    input.hidden_states = x;
    input.expert_tokens = ExpertTokens{valid, nullptr};
    experts->apply(input, *packed, buffers, where);
    const Tensor out(buffers.output.dtype, {buffers.output.size(0), max_rows, buffers.output.size(2)});
    copy(buffers.output, out, where);
    return out;
  }
};

TEST_F(CudaBatched, EveryWidthOfTile) {
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const std::int64_t tokens : {1, 5, 24, 70, 190, 400, 1100})
      expect_close(kBatched, problem({6, 2, 264, 136}, dtype, tokens), tokens, 6, "even");
}

TEST_F(CudaBatched, HotAndEmptyExperts) {
  // Three picks of one expert are one row there, which is added three times.
  for (const std::int64_t tokens : {3, 150, 700}) {
    expect_close(kBatched, problem({40, 3, 128, 64}, DType::bf16, tokens), tokens, 1, "one");
    expect_close(kBatched, problem({300, 3, 64, 32}, DType::bf16, tokens), tokens, 300, "many");
  }
}

TEST_F(CudaBatched, SizesThatNothingDivides) {
  for (const std::int64_t tokens : {2, 300}) {
    expect_close(kBatched, problem({3, 2, 67, 45}, DType::bf16, tokens), tokens, 3, "odd");
    expect_close(kBatched, problem({3, 2, 67, 45}, DType::f16, tokens), tokens, 3, "odd");
    expect_close(kBatched, problem({3, 2, 8, 8}, DType::bf16, tokens), tokens, 3, "tiny");
  }
}

TEST_F(CudaBatched, DeepRowsTakeTheWidestTileWithoutPairs) {
  expect_close(kBatched, problem({2, 1, 4096, 72}, DType::bf16, 1200), 1200, 2, "deep");
}

TEST_F(CudaBatched, EveryActivationAndBias) {
  expect_every_activation(kBatched);
  expect_every_activation(kPlainBatched);
}

TEST_F(CudaBatched, ThePlainPartTakesEveryDtype) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const std::int64_t tokens : {1, 70})
      expect_close(kPlainBatched, problem({5, 3, 67, 45}, dtype, tokens), tokens, 5, "plain");
}

TEST_F(CudaBatched, RouterWeightOnInput) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    Problem p = problem({5, 1, 96, 48}, dtype, 40);
    p.moe.apply_router_weight_on_input = true;
    expect_close(kBatched, p, 40, 5, "weight on input");
    expect_close(kPlainBatched, p, 40, 5, "weight on input");
  }
}

TEST_F(CudaBatched, RemoteExperts) {
  expect_remote_rows_to_be_zero(kBatched);
  expect_remote_rows_to_be_zero(kPlainBatched);
}

TEST_F(CudaBatched, ARowsBitsDoNotDependOnTheBatch) {
  expect_batch_invariance(kBatched);
}

TEST_F(CudaBatched, AGraphFollowsTheRouting) {
  expect_graph_to_follow_the_routing(kBatched);
}

TEST_F(CudaBatched, NoTokens) {
  const Problem p = problem({6, 2, 264, 136}, DType::bf16, 8);
  MoeLayer ours = layer(p, stream(), kBatched);
  Workspace workspace(stream().device);
  const TensorView none(nullptr, DType::bf16, {0, 264}, stream().device);
  const Routing routing{TensorView(nullptr, DType::i32, {0, 2}, stream().device),
                        TensorView(nullptr, DType::f32, {0, 2}, stream().device)};
  EXPECT_NO_THROW(ours.run({.hidden_states = none, .routing = routing}, none, workspace, stream()));
}

/// Counts of none, one, some, all, and of what a broken transport might leave; rows behind them are NaN.
TEST_F(CudaBatched, OnlyTheFirstRowsOfAnExpertAreReadAndWritten) {
  for (const std::int64_t max_rows : {3, 40, 300})
    for (const std::int64_t width : {72, 67}) {
      const Problem p = problem({6, 2, width, 40}, DType::bf16, max_rows);
      const double all = static_cast<double>(max_rows);
      const std::vector<double> valid = {0, 1, std::floor(all / 2), all, 0, all};
      const Tensor counts = test::tensor_of(DType::i32, {6}, {0, 1, std::floor(all / 2), all, -7, all + 100});
      const Tensor clamped = test::tensor_of(DType::i32, {6}, valid);
      const Tensor rows = test::random_tensor(DType::bf16, {6, max_rows, width}, 5);
      for (std::int64_t e = 0; e < 6; ++e)
        for (auto row = static_cast<std::int64_t>(valid[static_cast<std::size_t>(e)]); row < max_rows; ++row)
          test::poison(rows.view().at(e).at(row));
      const Tensor want = apply("experts/reference_batched", p, rows, clamped, Stream::cpu(*executor_));
      const Tensor got = apply(kBatched, p, rows, counts, stream());
      const Tensor plain = apply(kPlainBatched, p, rows, clamped, stream());
      for (std::int64_t e = 0; e < 6; ++e) {
        const auto count = static_cast<std::int64_t>(valid[static_cast<std::size_t>(e)]);
        const auto of = [&](const Tensor& t, std::int64_t from, std::int64_t length) {
          return test::values(t.view().at(e).narrow(0, from, length));
        };
        EXPECT_LT(test::rel_error(of(got, 0, count), of(want, 0, count)), 6e-3) << e << " of " << max_rows;
        EXPECT_LT(test::rel_error(of(plain, 0, count), of(want, 0, count)), 1e-5) << e << " of " << max_rows;
        EXPECT_TRUE(is_poison(got, e, count)) << e << " of " << max_rows;
        EXPECT_TRUE(is_poison(plain, e, count)) << e << " of " << max_rows;
      }
    }
}

TEST_F(CudaBatched, MisuseIsAnErrorWithTheValues) {
  const Problem p = problem({6, 2, 72, 40}, DType::bf16, 8);
  const Tensor rows = test::random_tensor(DType::bf16, {6, 8, 72}, 5);
  const auto message = [&](const Tensor& x, const Tensor& counts) {
    try {
      apply(kBatched, p, x, counts, stream());
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const Tensor six(DType::i32, {6}), five(DType::i32, {5}), wide(DType::i64, {6});
  EXPECT_NE(message(rows, five).find("expected contiguous i32 [6]"), std::string::npos) << message(rows, five);
  EXPECT_NE(message(rows, wide).find("i64[6]"), std::string::npos) << message(rows, wide);
  const Tensor narrow = test::random_tensor(DType::bf16, {6, 8, 64}, 5);
  EXPECT_NE(message(narrow, six).find("bf16[6, 8, 64]"), std::string::npos) << message(narrow, six);
  const Tensor few = test::random_tensor(DType::bf16, {5, 8, 72}, 5);
  EXPECT_NE(message(few, five).find("room for 6 local experts"), std::string::npos) << message(few, five);
}

}  // namespace
}  // namespace conclave
