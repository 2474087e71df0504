// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: parts and a problem. Out: a kernel, and what it writes into poisoned memory.
#include "verify/combination.hpp"

#include <algorithm>
#include <cstring>

#include "base/error.hpp"
#include "verify/element.hpp"
#include "verify/places.hpp"

namespace conclave::verify_detail {
namespace {

/// Bytes of 0xFF behind the workspace; a page would catch no more than an overrun of this size does.
constexpr std::int64_t kGuardBytes = 1024;
/// Rows of 0xFF before and after the output.
constexpr std::int64_t kGuardRows = 2;
constexpr std::int64_t kOutputPadding = 3;

bool is_poison(const std::byte* begin, std::int64_t bytes) {
  return std::all_of(begin, begin + bytes, [](std::byte b) { return b == std::byte{0xFF}; });
}

/// The output inside a larger tensor of NaN.
struct GuardedOutput {
  Slab slab;
  TensorView view;

  GuardedOutput(DType dtype, std::int64_t rows, std::int64_t width, std::int64_t padding)
      : slab(dtype, {rows + 2 * kGuardRows, width}, padding), view(slab.view.narrow(0, kGuardRows, rows)) {}

  /// Copies the rows out, then looks whether everything else is as it was.
  RunResult take() {
    RunResult result;
    result.output = clone(view);
    const std::int64_t row_bytes = bytes_of(view.dtype, view.size(1));
    for (std::int64_t m = 0; m < view.size(0); ++m)
      std::memset(view.at(m).data, 0xFF, static_cast<std::size_t>(row_bytes));
    const TensorView all = slab.memory.view();
    result.guards_intact = is_poison(all.as<std::byte>(), all.bytes());
    return result;
  }
};

std::shared_ptr<const Router> make_router(const Registry& registry, const Problem& problem) {
  for (const auto& entry : registry.routers.entries())
    if (entry.supports(problem)) return entry.make({problem, nullptr});
  fail(ErrorKind::unsupported, "verify: no router of the registry supports method {}",
       name_of(problem.moe.routing.method));
}

}  // namespace

Combination::Combination(const Registry& registry, const Entry<Experts>& experts, const Entry<PrepareFinalize>& ends,
                         const ProblemData& data, Stream stream) {
  std::shared_ptr<const Router> router;
  if (experts.monolithic) router = make_router(registry, data.problem);
  const PartContext context{data.problem, router};
  kernel_ = std::make_unique<FusedMoeKernel>(data.problem, ends.make(context), experts.make(context));
  packed_ = kernel_->experts().pack(data.weights(), stream);
}

RunResult Combination::run(const ProblemData& data, Rows rows, Stream stream) {
  return run(data, rows, *packed_, stream);
}

RunResult Combination::run(const ProblemData& data, Rows rows, const PackedWeights& weights, Stream stream) {
  Places places(stream);
  KernelInput input;
  input.hidden_states = places.put(ConstTensorView(data.hidden_states.view.narrow(0, rows.first, rows.count)));
  if (kernel_->is_monolithic()) {
    input.router = data.router_input(rows.first, rows.count);
    places.put(*input.router);
  } else {
    input.routing = Routing{places.put(data.topk_ids.view.narrow(0, rows.first, rows.count)),
                            places.put(data.topk_weights.view.narrow(0, rows.first, rows.count))};
  }
  if (kernel_->supports_expert_map()) input.expert_map = data.map_view();
  places.put(input.expert_map);

  Arena measure = Arena::measuring(stream.device);
  kernel_->plan_scratch(measure, rows.count);
  const std::int64_t bytes = measure.peak();
  const Tensor workspace = poisoned(DType::u8, {bytes + kGuardBytes}, stream);
  Arena arena({workspace.as<std::byte>(), static_cast<std::size_t>(bytes)}, stream.device);

  const MoeConfig& moe = data.problem.moe;
  GuardedOutput output(moe.dtype, rows.count, moe.hidden_size, data.strided ? kOutputPadding : 0);
  const TensorView all = places.put(output.slab.memory.view());
  TensorView there = output.view;
  there.device = all.device;
  there.data = all.as<std::byte>() + (output.view.as<std::byte>() - output.slab.memory.as<std::byte>());
  kernel_->run(input, weights, there, arena, stream);
  places.take_back(output.slab.memory);
  RunResult result = output.take();
  const Tensor behind = bytes_on_host(workspace, bytes, kGuardBytes, stream);
  result.guards_intact = result.guards_intact && is_poison(behind.as<std::byte>(), kGuardBytes);
  result.inputs_intact = places.unchanged();
  return result;
}

}  // namespace conclave::verify_detail
