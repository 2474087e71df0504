// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Names of routing methods and their parts, and the published parameters of each method.
#include "base/names.hpp"
#include "conclave/routing.hpp"

namespace conclave {
namespace {

constexpr NameTable<RoutingMethod, 14> kMethods{{
    {RoutingMethod::default_, "default"},
    {RoutingMethod::renormalize, "renormalize"},
    {RoutingMethod::deepseek_v3, "deepseek_v3"},
    {RoutingMethod::llama4, "llama4"},
    {RoutingMethod::renormalize_naive, "renormalize_naive"},
    {RoutingMethod::top_k, "top_k"},
    {RoutingMethod::sigmoid_renorm, "sigmoid_renorm"},
    {RoutingMethod::minimax2, "minimax2"},
    {RoutingMethod::sigmoid, "sigmoid"},
    {RoutingMethod::topk_sigmoid, "topk_sigmoid"},
    {RoutingMethod::deepseek_v4, "deepseek_v4"},
    {RoutingMethod::sparsemixer, "sparsemixer"},
    {RoutingMethod::custom, "custom"},
    {RoutingMethod::simulated, "simulated"},
}};
constexpr auto kMethodValues = values_of(kMethods);

constexpr NameTable<Scoring, 4> kScorings{{
    {Scoring::softmax, "softmax"},
    {Scoring::sigmoid, "sigmoid"},
    {Scoring::sqrt_softplus, "sqrt_softplus"},
    {Scoring::logits, "logits"},
}};
constexpr NameTable<GroupScore, 2> kGroupScores{{{GroupScore::max, "max"}, {GroupScore::top2_sum, "top2_sum"}}};
constexpr NameTable<Renormalize, 3> kRenormalizes{{
    {Renormalize::none, "none"},
    {Renormalize::sum_plus_epsilon, "sum_plus_epsilon"},
    {Renormalize::max_epsilon, "max_epsilon"},
}};
constexpr NameTable<SimulatedRouting, 4> kSimulated{{
    {SimulatedRouting::uniform_random, "uniform_random"},
    {SimulatedRouting::normal_routing, "normal_routing"},
    {SimulatedRouting::uniform, "uniform"},
    {SimulatedRouting::zipf, "zipf"},
}};

/// Keeps 0 / (0 + epsilon) at 0 where every chosen weight underflowed; far below any weight that matters.
constexpr double kTinySum = 1e-20;

RoutingConfig scored(RoutingMethod method, Scoring scoring, bool after_topk, Renormalize renormalize, double epsilon) {
  RoutingConfig c;
  c.method = method;
  c.scoring = scoring;
  c.score_after_topk = after_topk;
  c.renormalize = renormalize;
  c.epsilon = epsilon;
  return c;
}

}  // namespace

RoutingConfig routing_preset(RoutingMethod method) {
  using enum Renormalize;
  switch (method) {
    case RoutingMethod::default_:
    case RoutingMethod::custom:
    case RoutingMethod::simulated:
    case RoutingMethod::sparsemixer:
      return scored(method, Scoring::softmax, false, none, 0);
    case RoutingMethod::renormalize:
      return scored(method, Scoring::softmax, true, none, 0);
    case RoutingMethod::deepseek_v3: {
      RoutingConfig c = scored(method, Scoring::sigmoid, false, sum_plus_epsilon, kTinySum);
      c.has_bias = true;
      c.group_score = GroupScore::top2_sum;
      return c;
    }
    case RoutingMethod::llama4:
    case RoutingMethod::topk_sigmoid:
      return scored(method, Scoring::sigmoid, true, none, 0);
    case RoutingMethod::renormalize_naive:
      return scored(method, Scoring::softmax, false, sum_plus_epsilon, 0);
    case RoutingMethod::top_k:
      return scored(method, Scoring::logits, false, none, 0);
    case RoutingMethod::sigmoid_renorm:
      return scored(method, Scoring::sigmoid, false, sum_plus_epsilon, kTinySum);
    case RoutingMethod::minimax2: {
      RoutingConfig c = scored(method, Scoring::sigmoid, false, sum_plus_epsilon, kTinySum);
      c.has_bias = true;
      return c;
    }
    case RoutingMethod::sigmoid:
      return scored(method, Scoring::sigmoid, false, none, 0);
    case RoutingMethod::deepseek_v4: {
      RoutingConfig c = scored(method, Scoring::sqrt_softplus, false, max_epsilon, kTinySum);
      c.has_bias = true;
      return c;
    }
  }
  return {};
}

std::string_view name_of(RoutingMethod method) noexcept {
  return name_in(kMethods, method);
}
std::string_view name_of(Scoring scoring) noexcept {
  return name_in(kScorings, scoring);
}
std::string_view name_of(GroupScore score) noexcept {
  return name_in(kGroupScores, score);
}
std::string_view name_of(Renormalize mode) noexcept {
  return name_in(kRenormalizes, mode);
}
std::string_view name_of(SimulatedRouting mode) noexcept {
  return name_in(kSimulated, mode);
}

RoutingMethod routing_method_from_name(std::string_view name) {
  return value_in(kMethods, "routing method", name);
}
Scoring scoring_from_name(std::string_view name) {
  return value_in(kScorings, "scoring", name);
}
GroupScore group_score_from_name(std::string_view name) {
  return value_in(kGroupScores, "group_score", name);
}
Renormalize renormalize_from_name(std::string_view name) {
  return value_in(kRenormalizes, "renormalize", name);
}
SimulatedRouting simulated_from_name(std::string_view name) {
  return value_in(kSimulated, "simulated routing", name);
}
std::span<const RoutingMethod> all_routing_methods() noexcept {
  return kMethodValues;
}

std::optional<RoutingMethod> routing_method_of(Scoring scoring, bool renormalize, bool grouped, bool has_bias,
                                               double routed_scaling_factor) noexcept {
  if (scoring == Scoring::sqrt_softplus) {
    if (renormalize) return RoutingMethod::deepseek_v4;
    return std::nullopt;
  }
  if (has_bias) {
    if (scoring != Scoring::sigmoid || !renormalize) return std::nullopt;
    if (grouped) return RoutingMethod::deepseek_v3;
    if (routed_scaling_factor == 1.0) return RoutingMethod::minimax2;
    return std::nullopt;
  }
  if (scoring == Scoring::sigmoid) return renormalize ? RoutingMethod::sigmoid_renorm : RoutingMethod::sigmoid;
  if (scoring == Scoring::softmax) return renormalize ? RoutingMethod::renormalize_naive : RoutingMethod::default_;
  return std::nullopt;
}

}  // namespace conclave
