// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The tail on a GPU against the one on the CPU: the same bits. The sum of squares is added in another order, but in
// double, and what follows from it is rounded to f32.
#include <gtest/gtest.h>

#include "conclave/error.hpp"
#include "support/gpu.hpp"
#include "support/message_of.hpp"
#include "tail/tail_case.hpp"

namespace conclave {
namespace {

using test::make_tail_case;
using test::same_bytes;
using test::TailCase;
using test::TailRun;
using test::TailShape;

class CudaTail : public test::OnGpu {
 protected:
  /// What a rank's tensors are on the host, put on the GPU.
  struct Copies {
    Tensor rows, weights, map, shared, residual, norm_weight, routed, scale;
  };

  /// Bit for bit, but for the payloads of NaN, which differ between processors.
  static bool same_numbers(const Tensor& a, const Tensor& b) {
    const std::vector<double> x = test::values(a), y = test::values(b);
    for (std::size_t i = 0; i < x.size(); ++i)
      if (!(std::isnan(x[i]) && std::isnan(y[i])) && !(x[i] == y[i] && std::signbit(x[i]) == std::signbit(y[i])))
        return false;
    return x.size() == y.size();
  }

  TailInput on_host(const TailCase& c) const {
    TailInput in;
    in.moe = c.open();
    in.residual = c.residual.view();
    in.norm_weight = c.norm_weight.view();
    return in;
  }

  TailInput on_device(const TailInput& host, Copies& to) const {
    TailInput in = host;
    if (host.moe.unfinalized) {
      const UnfinalizedMoeOutput& open = *host.moe.unfinalized;
      to.rows = up(open.gemm2_permuted);
      to.weights = up(open.expert_weights);
      to.map = up(open.expanded_idx_to_permuted_idx);
      in.moe.unfinalized = UnfinalizedMoeOutput{to.rows, to.weights, to.map};
    }
    const auto move = [&](std::optional<ConstTensorView>& view, Tensor& copy) {
      if (!view) return;
      copy = up(*view);
      view = ConstTensorView(copy);
    };
    move(in.moe.routed, to.routed);
    move(in.moe.shared_output, to.shared);
    move(in.residual, to.residual);
    move(in.static_scale, to.scale);
    to.norm_weight = up(in.norm_weight);
    in.norm_weight = to.norm_weight;
    return in;
  }

  TailRun run_on_gpu(const TailConfig& config, const TailInput& host, const TailShape& s, DType out) const {
    Copies copies;
    const TailInput in = on_device(host, copies);
    const Tensor residual_out = poisoned(out, {s.num_tokens, s.hidden_size});
    const Tensor normed = poisoned(out, {s.num_tokens, s.hidden_size});
    const Tensor quantised = poisoned(DType::fp8_e4m3, {s.num_tokens, s.hidden_size});
    const Tensor token_scales = poisoned(DType::f32, {s.num_tokens});
    TailOutput output;
    output.residual_out = residual_out.view();
    output.normed = normed.view();
    if (config.quant != QuantKey::none) output.quantised = quantised.view();
    if (config.quant == QuantKey::fp8_token) output.token_scales = token_scales.view();
    Arena measure = Arena::measuring(stream().device);
    plan_tail_scratch(measure, s.num_tokens, s.hidden_size);
    Workspace workspace(stream().device);
    Arena arena(workspace.region({}, measure.peak()), stream().device);
    workspace.poison();
    run_tail(config, in, output, arena, stream());
    return {down(residual_out), down(normed), down(quantised), down(token_scales)};
  }

  void expect_same(const TailConfig& config, const TailInput& in, const TailShape& s, DType out, const char* what) {
    const TailRun want = test::run_tail_once(config, in, s, *executor_, out);
    const TailRun got = run_on_gpu(config, in, s, out);
    EXPECT_TRUE(same_numbers(got.residual_out, want.residual_out)) << what;
    EXPECT_TRUE(same_numbers(got.normed, want.normed)) << what;
    EXPECT_TRUE(same_bytes(got.quantised, want.quantised)) << what;
    EXPECT_TRUE(same_bytes(got.token_scales, want.token_scales)) << what;
  }

  std::unique_ptr<Executor> executor_ = make_executor(2);
};

TEST_F(CudaTail, HasTheBitsOfTheCpu) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const double bias : {0.0, 1.0})
      for (const std::int64_t width : {1, 521, 5000}) {
        const TailShape s{.hidden_size = width, .rows = dtype, .weights = dtype, .dtype = dtype};
        const TailCase c = make_tail_case(s, 21);
        TailInput in = on_host(c);
        in.moe.routed_scaling_factor = 1.75;
        expect_same({.weight_bias = bias}, in, s, dtype, "all of it");
        expect_same({.weight_bias = bias}, in, s, DType::f32, "into f32");
        in.residual.reset();
        in.moe.shared_output.reset();
        in.moe.routed_scaling_factor = 1.0;
        expect_same({.weight_bias = bias}, in, s, dtype, "rows alone");
      }
}

TEST_F(CudaTail, RowsThatSharedMemoryDoesNotHold) {
  const TailShape s{.num_tokens = 3, .hidden_size = 30011, .dtype = DType::bf16};
  const TailCase c = make_tail_case(s, 23);
  expect_same({.quant = QuantKey::fp8_token}, on_host(c), s, DType::bf16, "wide");
}

TEST_F(CudaTail, QuantisesAsTheCpuDoes) {
  const TailShape s{.num_tokens = 70, .dtype = DType::bf16};
  TailCase c = make_tail_case(s, 25);
  // A row of zeros has the smallest scale, one with a NaN has none.
  for (std::int64_t h = 0; h < s.hidden_size; ++h) {
    for (std::int64_t k = 0; k < s.top_k; ++k) c.weights.as<float>()[4 * s.top_k + k] = 0.0F;
    test::set(c.shared, {4, h}, 0.0);
    test::set(c.residual, {4, h}, 0.0);
  }
  test::set(c.residual, {5, 17}, NAN);
  expect_same({.quant = QuantKey::fp8_token}, on_host(c), s, DType::bf16, "token");
  TailInput in = on_host(c);
  const Tensor scale = test::tensor_of(DType::f32, {1}, {0.01});
  in.static_scale = ConstTensorView(scale);
  expect_same({.quant = QuantKey::fp8_tensor}, in, s, DType::bf16, "tensor");
  // Nobody on the host can look at a scale on the GPU: it must not give plausible codes.
  for (const double bad : {0.0, -1.0, static_cast<double>(NAN)}) {
    const Tensor wrong = test::tensor_of(DType::f32, {1}, {bad});
    in.static_scale = ConstTensorView(wrong);
    const TailRun r = run_on_gpu({.quant = QuantKey::fp8_tensor}, in, s, DType::bf16);
    for (std::int64_t i = 0; i < s.hidden_size; ++i) ASSERT_EQ(r.quantised.as<std::uint8_t>()[i] & 0x7F, 0x7F) << bad;
  }
}

TEST_F(CudaTail, RoutedRowsWithStridesAndInPlaceResidual) {
  const TailShape s{.num_tokens = 9, .dtype = DType::bf16};
  const TailCase c = make_tail_case(s, 27);
  const Tensor wide = test::random_tensor(DType::bf16, {9, s.hidden_size + 9}, 14);
  TailInput in = on_host(c);
  in.moe.unfinalized.reset();
  in.moe.routed = wide.view().narrow(1, 4, s.hidden_size);
  expect_same({}, in, s, DType::bf16, "routed");
  // The residual's own memory receives the sum.
  const TailRun want = test::run_tail_once({}, in, s, *executor_, DType::bf16);
  Copies copies;
  const TailInput there = on_device(in, copies);
  TailOutput output;
  output.residual_out = copies.residual.view();
  Arena measure = Arena::measuring(stream().device);
  plan_tail_scratch(measure, s.num_tokens, s.hidden_size);
  Workspace workspace(stream().device);
  Arena arena(workspace.region({}, measure.peak()), stream().device);
  run_tail({}, there, output, arena, stream());
  const Tensor got = down(copies.residual);
  EXPECT_TRUE(same_bytes(got, want.residual_out));
}

TEST_F(CudaTail, RowsDoNotDependOnTheBatchAndRepeat) {
  const TailShape s{.num_tokens = 65};
  const TailCase c = make_tail_case(s, 29);
  const TailInput in = on_host(c);
  const TailRun all = run_on_gpu({}, in, s, DType::f32), again = run_on_gpu({}, in, s, DType::f32);
  EXPECT_TRUE(same_bytes(all.normed, again.normed));
  for (const std::int64_t t : {0, 1, 31, 64}) {
    TailInput row = in;
    row.moe.unfinalized->expert_weights = c.weights.view().narrow(0, t, 1);
    row.moe.unfinalized->expanded_idx_to_permuted_idx = c.map.view().narrow(0, t, 1);
    row.moe.shared_output = c.shared.view().narrow(0, t, 1);
    row.residual = c.residual.view().narrow(0, t, 1);
    const TailShape one{.num_tokens = 1};
    EXPECT_TRUE(same_bytes(run_on_gpu({}, row, one, DType::f32).normed, all.normed.view().narrow(0, t, 1))) << t;
  }
}

TEST_F(CudaTail, FinishHasTheBitsOfTheCpu) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const TailShape s{.rows = dtype, .weights = DType::f32, .dtype = dtype};
    const TailCase c = make_tail_case(s, 31);
    TailInput in = on_host(c);
    in.moe.routed_scaling_factor = 2.5;
    // A map that points past the rows is an error on the CPU, and no row here.
    const Tensor want = test::poisoned_tensor(dtype, {s.num_tokens, s.hidden_size});
    finish(in.moe, want, Stream::cpu(*executor_));
    Copies copies;
    TailInput there = on_device(in, copies);
    const Tensor got = poisoned(dtype, {s.num_tokens, s.hidden_size});
    finish(there.moe, got, stream());
    const Tensor here = down(got);
    EXPECT_TRUE(same_bytes(here, want)) << name_of(dtype);
    const Tensor beyond = up(test::tensor_of(DType::i32, {1, 1}, {1000000}));
    there.moe.unfinalized->expanded_idx_to_permuted_idx = beyond.view();
    there.moe.unfinalized->expert_weights = there.moe.unfinalized->expert_weights.narrow(0, 0, 1).narrow(1, 0, 1);
    there.moe.shared_output.reset();
    const Tensor zeros = poisoned(dtype, {1, s.hidden_size});
    finish(there.moe, zeros, stream());
    for (const double value : test::values(down(zeros))) ASSERT_EQ(value, 0.0);
  }
}

TEST_F(CudaTail, NoTokens) {
  const ConstTensorView none(nullptr, DType::f32, {0, 5}, stream().device);
  MoeOutput open;
  open.routed = none;
  EXPECT_NO_THROW(finish(open, TensorView(nullptr, DType::f32, {0, 5}, stream().device), stream()));
  const Tensor weight = up(test::random_tensor(DType::f32, {5}, 1));
  TailInput in;
  in.moe = open;
  in.norm_weight = weight;
  TailOutput output;
  output.normed = TensorView(nullptr, DType::f32, {0, 5}, stream().device);
  Arena arena = Arena::measuring(stream().device);
  EXPECT_NO_THROW(run_tail({}, in, output, arena, stream()));
}

TEST_F(CudaTail, MisuseIsAnErrorWithTheValues) {
  const TailShape s;
  const TailCase c = make_tail_case(s, 33);
  TailInput in = on_host(c);
  Copies copies;
  const auto message = [&](const TailInput& input) {
    const Tensor normed = poisoned(DType::f32, {s.num_tokens, s.hidden_size});
    TailOutput output;
    output.normed = normed.view();
    Arena measure = Arena::measuring(stream().device);
    plan_tail_scratch(measure, s.num_tokens, s.hidden_size);
    Workspace workspace(stream().device);
    Arena arena(workspace.region({}, measure.peak()), stream().device);
    return test::message_of([&] { run_tail({}, input, output, arena, stream()); });
  };
  TailInput there = on_device(in, copies);
  there.residual = in.residual;
  EXPECT_NE(message(there).find("residual: given memory of cpu, expected cuda:0"), std::string::npos) << message(there);
  there = on_device(in, copies);
  const auto sum = [](const TensorView&) {};
  const AllReduceInPlace all_reduce(sum);
  there.all_reduce = &all_reduce;
  EXPECT_NE(message(there).find("cuda:0 knows one rank"), std::string::npos) << message(there);
}

}  // namespace
}  // namespace conclave
