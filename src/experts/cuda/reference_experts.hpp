// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What the plain parts on a GPU have in common: weights in f32 as given, and the fields of PlainProducts that do not
// depend on the format.
#pragma once

#include <memory>
#include <string>

#include "conclave/experts.hpp"
#include "experts/cuda/device_weights.hpp"
#include "experts/cuda/reference_kernels.hpp"
#include "experts/weights_check.hpp"

namespace conclave::experts::cuda {

class ReferenceExperts : public ModularExperts {
 public:
  ReferenceExperts(std::string name, const Problem& problem)
      : name_(std::move(name)),
        problem_(problem),
        activation_(make_activation(problem.moe.activation, problem.moe.activation_params)) {}

  const std::string& name() const noexcept override { return name_; }
  bool supports_expert_map() const noexcept override { return true; }
  std::unique_ptr<PackedWeights> pack(const ExpertWeights& weights, Stream stream) const override {
    return std::make_unique<DeviceWeights>(name_, DeviceLayout{DType::f32, 1, false}, problem_, weights, stream);
  }
  void update(PackedWeights& packed, const ExpertWeights& weights, Stream stream) const override {
    packed_as<DeviceWeights>(packed, name_).assign(problem_, weights, stream);
  }
  std::string describe(std::int64_t /*num_tokens*/) const override { return "a warp an element, f32"; }

 protected:
  const Problem& problem() const noexcept { return problem_; }
  const MoeConfig& moe() const noexcept { return problem_.moe; }

  PlainProducts products_of(const DeviceWeights& weights) const {
    PlainProducts work;
    work.dtype = moe().dtype;
    work.num_local_experts = static_cast<std::int32_t>(weights.num_local_experts());
    work.hidden_size = moe().expert_width();
    work.intermediate_size = moe().intermediate_size;
    work.layout = moe().w13_layout;
    work.activation = activation_;
    work.w13 = static_cast<const float*>(weights.w13());
    work.w2 = static_cast<const float*>(weights.w2());
    work.w13_bias = weights.w13_bias();
    work.w2_bias = weights.w2_bias();
    return work;
  }

 private:
  std::string name_;
  Problem problem_;
  ActivationFn activation_;
};

}  // namespace conclave::experts::cuda
