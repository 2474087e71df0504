// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The conformance grid on a GPU: every part of the CUDA back end is in it, nothing fails, every mistake is noticed; and
// a part that writes into its input is found out, although what it gets there are copies.
#include <gtest/gtest.h>

#include <algorithm>

#include "conclave/verify.hpp"
#include "support/gpu.hpp"

namespace conclave {
namespace {

class CudaVerify : public test::OnGpu {
 protected:
  VerifyReport run(const Registry& registry, const std::string& filter) const {
    VerifyOptions options;
    options.quick = true;
    options.filter = filter;
    return verify(registry, cuda_facts(0), stream(), options);
  }
};

TEST_F(CudaVerify, EveryPartOfTheBackEndPasses) {
  const Registry registry = builtin_registry();
  const VerifyReport report = run(registry, "cuda_");
  EXPECT_TRUE(report.ok());
  EXPECT_GT(report.mutations, 0);
  for (const VerifyRow& row : report.rows)
    EXPECT_NE(row.verdict, Verdict::failed)
        << row.part << ", " << row.problem << ", " << row.check << ": " << row.message;
  for (const auto& experts : registry.experts.entries()) {
    if (experts.name.find("/cuda_") == std::string::npos) continue;
    const auto passed = std::count_if(report.rows.begin(), report.rows.end(), [&](const VerifyRow& row) {
      return row.verdict == Verdict::passed && row.part.find(experts.name) == 0;
    });
    EXPECT_GT(passed, 0) << experts.name;
  }
}

/// Passes everything on to the part that it stands for, and clears the hidden states afterwards.
class Scribbler final : public ModularPrepareFinalize {
 public:
  explicit Scribbler(std::unique_ptr<PrepareFinalize> part) : part_(std::move(part)) {}
  const std::string& name() const noexcept override { return part_->name(); }
  void plan_scratch(Arena& arena, std::int64_t num_tokens) const override { inner().plan_scratch(arena, num_tokens); }
  Prepared prepare(const PrepareInput& input, Arena& arena, Stream stream) override {
    input_ = input.hidden_states;
    return inner().prepare(input, arena, stream);
  }
  void finalize(const FinalizeInput& input, const TensorView& output, Stream stream) override {
    inner().finalize(input, output, stream);
    const Tensor zeros(input_.dtype, {1, input_.size(1)});
    copy(zeros, TensorView(const_cast<void*>(input_.data), input_.dtype, {1, input_.size(1)}, input_.device), stream);
  }

 private:
  ModularPrepareFinalize& inner() const { return static_cast<ModularPrepareFinalize&>(*part_); }
  std::unique_ptr<PrepareFinalize> part_;
  ConstTensorView input_;
};

TEST_F(CudaVerify, APartThatWritesIntoItsInputIsFoundOut) {
  const Registry builtin = builtin_registry();
  Registry registry;
  registry.routers = builtin.routers;
  registry.experts.add_last(*builtin.experts.find("experts/cuda_reference"));
  Entry<PrepareFinalize> entry = *builtin.prepare_finalizes.find("dispatch/cuda_no_ep");
  entry.make = [make = entry.make](const PartContext& context) -> std::unique_ptr<PrepareFinalize> {
    return std::make_unique<Scribbler>(make(context));
  };
  registry.prepare_finalizes.add_last(entry);
  const VerifyReport report = run(registry, "experts/cuda_reference + dispatch/cuda_no_ep");
  EXPECT_FALSE(report.ok());
  EXPECT_TRUE(std::any_of(report.rows.begin(), report.rows.end(), [](const VerifyRow& row) {
    return row.verdict == Verdict::failed && row.check == "inputs_unchanged";
  }));
}

}  // namespace
}  // namespace conclave
