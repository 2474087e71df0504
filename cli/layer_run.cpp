// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Planning of one variant, and one run of it.
#include "layer_run.hpp"

#include <cstring>
#include <vector>

#include "conclave/device.hpp"
#include "conclave/error.hpp"
#include "convert.hpp"

namespace conclave::cli {
namespace {

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

Variant try_plan(const Problem& problem, const Registry& registry, const PlanOptions& options, bool convert) {
  Variant variant;
  variant.convert_weights = convert;
  try {
    variant.plan = plan(problem, registry, options);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::unsupported) throw;
    variant.report = error.what();
    variant.refusal = options.experts.empty() ? "" : refusal_of(variant.report, options.experts);
    if (variant.refusal.empty()) variant.refusal = first_line(variant.report);
  }
  return variant;
}

std::size_t rank_of(const Registry& registry, const std::string& experts) {
  std::size_t rank = 0;
  for (const auto& entry : registry.experts.entries()) {
    if (entry.name == experts) break;
    ++rank;
  }
  return rank;
}

/// Copies what may have to change its type; the views of the copies replace the originals.
class WeightConverter {
 public:
  WeightConverter(DType dtype, Executor& executor) : dtype_(dtype), executor_(executor) {}

  void operator()(ConstTensorView& view, const char* what) {
    if (view.dtype == dtype_ || !is_convertible(view.dtype)) return;
    copies_->push_back(convert(view, dtype_, what, executor_));
    view = copies_->back();
  }
  void operator()(std::optional<ConstTensorView>& view, const char* what) {
    if (view) (*this)(*view, what);
  }
  std::shared_ptr<const void> owner() const { return copies_; }

 private:
  DType dtype_;
  Executor& executor_;
  std::shared_ptr<std::vector<Tensor>> copies_ = std::make_shared<std::vector<Tensor>>();
};

/// Tensors of the host where the layer runs: themselves on the CPU, copies on a GPU.
class DeviceCopies {
 public:
  explicit DeviceCopies(Stream stream) : stream_(stream) {}

  ConstTensorView up(const ConstTensorView& host) {
    if (stream_.device.type == DeviceType::cpu) return host;
    copies_.emplace_back(host.dtype,
                         std::span<const std::int64_t>(host.shape.data(), static_cast<std::size_t>(host.rank)),
                         stream_.device);
    copy(host, copies_.back(), stream_);
    return copies_.back();
  }
  /// Also brought back at the end.
  TensorView both(const TensorView& host) {
    if (stream_.device.type == DeviceType::cpu) return host;
    up(host);
    returned_.emplace_back(copies_.back(), host);
    return copies_.back();
  }
  void bring_back() {
    for (const auto& [device, host] : returned_) copy(device, host, stream_);
    synchronize(stream_);
  }

 private:
  Stream stream_;
  std::vector<Tensor> copies_;
  std::vector<std::pair<Tensor, TensorView>> returned_;
};

}  // namespace

std::string refusal_of(const std::string& report, const std::string& part) {
  // The report has one line "  - NAME   reason" for each candidate that lost.
  const std::string head = "  - " + part + " ";
  const auto at = report.find(head);
  if (at == std::string::npos) return {};
  const auto begin = report.find_first_not_of(' ', at + head.size());
  if (begin == std::string::npos) return {};
  return report.substr(begin, report.find('\n', begin) - begin);
}

Variant plan_variant(Problem problem, DType dtype, const Registry& registry, const PlanOptions& options) {
  problem.moe.dtype = dtype;
  Variant stored = try_plan(problem, registry, options, false);
  const bool pinned = !options.experts.empty();
  if (problem.moe.weight_dtype == dtype || problem.quant.weights != QuantKey::none || (pinned && stored.plan))
    return stored;
  problem.moe.weight_dtype = dtype;
  Variant converted = try_plan(problem, registry, options, true);
  if (!converted.plan) return stored;
  if (!stored.plan) return converted;
  return rank_of(registry, converted.plan->experts.chosen) < rank_of(registry, stored.plan->experts.chosen) ? converted
                                                                                                            : stored;
}

LayerWeights weights_for(const Variant& variant, const LayerWeights& weights, Executor& executor) {
  LayerWeights w = weights;
  w.experts.give_up = nullptr;
  if (!variant.convert_weights) return w;
  WeightConverter widen(variant.plan->problem.moe.weight_dtype, executor);
  widen(w.experts.w13, "w13");
  widen(w.experts.w2, "w2");
  widen(w.shared_w13, "shared_w13");
  widen(w.shared_w2, "shared_w2");
  // Both owners: what was not converted is still a view of the original.
  w.keep_alive = std::make_shared<std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>>(
      weights.keep_alive, widen.owner());
  return w;
}

Tensor poisoned(DType dtype, std::initializer_list<std::int64_t> shape) {
  Tensor tensor(dtype, shape);
  if (tensor.view().numel() > 0) std::memset(tensor.view().data, 0xFF, static_cast<std::size_t>(tensor.view().bytes()));
  return tensor;
}

LayerResult run_layer(const Plan& plan, const Registry& registry, const LayerWeights& weights, LayerInput input,
                      Stream stream) {
  const MoeConfig& c = plan.problem.moe;
  MoeLayer layer(plan, registry, weights, stream);
  const std::int64_t num_tokens = input.hidden_states.size(0);
  LayerResult result;
  result.output = poisoned(c.dtype, {num_tokens, c.hidden_size});
  result.topk_ids = poisoned(DType::i32, {num_tokens, c.num_slots()});
  result.topk_weights = poisoned(DType::f32, {num_tokens, c.num_slots()});
  const bool captures = !input.routing;
  if (!captures) {
    result.topk_ids = convert_ids(input.routing->topk_ids, "topk_ids");
    const auto here = make_inline_executor();
    result.topk_weights = convert(input.routing->topk_weights, DType::f32, "topk_weights", *here);
  }
  DeviceCopies copies(stream);
  input.hidden_states = copies.up(input.hidden_states);
  if (input.router_logits) input.router_logits = copies.up(*input.router_logits);
  if (input.token_ids) input.token_ids = copies.up(*input.token_ids);
  if (captures)
    input.captured = Routing{copies.both(result.topk_ids), copies.both(result.topk_weights)};
  else
    input.routing = Routing{copies.both(input.routing->topk_ids), copies.both(input.routing->topk_weights)};
  const TensorView output = copies.both(result.output);
  Workspace workspace(stream.device);
  layer.run(input, output, workspace, stream);
  copies.bring_back();
  return result;
}

}  // namespace conclave::cli
