// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The routers of broken_router.hpp.
#include "verify/broken_router.hpp"

#include <cmath>
#include <limits>

#include "conclave/error.hpp"

namespace conclave::test {
namespace {

const std::string kBrokenRouter = "router/broken";

class BrokenRouter final : public Router {
 public:
  BrokenRouter(std::unique_ptr<Router> right, const MoeConfig& moe, RouterDefect defect)
      : right_(std::move(right)), moe_(moe), defect_(defect) {}

  const std::string& name() const noexcept override { return kBrokenRouter; }
  void plan_scratch(Arena& arena, std::int64_t num_tokens) const override { right_->plan_scratch(arena, num_tokens); }
  void route(const RouterInput& input, const Routing& out, Arena& arena, Stream stream) const override {
    const std::int64_t num_tokens = input.logits.size(0);
    if (defect_ == RouterDefect::fails_on_zero_tokens && num_tokens == 0)
      throw Error(ErrorKind::invalid_argument, "broken: no tokens");
    right_->route(input, out, arena, stream);
    for (std::int64_t m = 0; m < num_tokens; ++m) spoil(input, out, m, num_tokens);
  }

 private:
  void spoil(const RouterInput& input, const Routing& out, std::int64_t m, std::int64_t num_tokens) const {
    const std::int64_t slots = out.topk_ids.size(1);
    auto* ids = out.topk_ids.as<std::int32_t>() + m * out.topk_ids.stride(0);
    auto* weights = out.topk_weights.as<float>() + m * out.topk_weights.stride(0);
    switch (defect_) {
      case RouterDefect::swaps_first_two:
        if (slots > 1) std::swap(ids[0], ids[1]), std::swap(weights[0], weights[1]);
        return;
      case RouterDefect::leaks_bias:
        for (std::int64_t k = 0; k < moe_.top_k && input.e_score_correction_bias; ++k)
          weights[k] += input.e_score_correction_bias->as<float>()[ids[k]];
        return;
      case RouterDefect::drops_factor:
        for (std::int64_t k = 0; k < moe_.top_k; ++k)
          weights[k] /= static_cast<float>(moe_.routing.routed_scaling_factor);
        return;
      case RouterDefect::keeps_nan_weight:
        if (m == 1 && weights[0] == 0.0F) weights[0] = std::numeric_limits<float>::quiet_NaN();
        return;
      case RouterDefect::forgets_last_slot:
        ids[slots - 1] = -1;  // What the poisoned memory held before.
        return;
      case RouterDefect::depends_on_batch:
        if (num_tokens > 1) weights[0] = std::nextafter(weights[0], 2.0F);
        return;
      default:
        return;
    }
  }

  std::unique_ptr<Router> right_;
  MoeConfig moe_;
  RouterDefect defect_;
};

}  // namespace

Registry registry_with_router(RouterDefect defect) {
  const Entry<Router> right = builtin_registry().routers.entries().back();
  Entry<Router> entry;
  entry.name = kBrokenRouter;
  entry.supports = right.supports;
  entry.make = [right, defect](const PartContext& context) {
    return std::make_unique<BrokenRouter>(right.make(context), context.problem.moe, defect);
  };
  Registry registry;
  registry.routers.add_last(std::move(entry));
  return registry;
}

}  // namespace conclave::test
