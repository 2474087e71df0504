// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Mistakes with codes and scales, on problems that have them.
#include "verify/element.hpp"
#include "verify/mutations.hpp"

namespace conclave::verify_detail {
namespace {

/// Element (i0, i1, ...) := what was at the index one further along dimension `d`, the last taking the first.
bool rotate(const Slab& slab, int d) {
  const std::int64_t size = slab.view.size(d);
  if (size < 2) return false;
  const Slab before = slab.copy();
  for (std::int64_t i = 0; i < size; ++i) {
    const TensorView to = slab.view.narrow(d, i, 1);
    const TensorView from = before.view.narrow(d, (i + 1) % size, 1);
    for_each_offset(to, [&](std::int64_t offset) { store(to, offset, load(from, offset)); });
  }
  return true;
}

bool rotate(ProblemData& data, const char* name, int d) {
  const auto found = data.scales.find(name);
  return found != data.scales.end() && found->second.view.rank > d && rotate(found->second, d);
}

bool scale_of_wrong_expert(ProblemData& d) {
  return rotate(d, "w13_scale", 0);
}
bool w2_scale_of_wrong_expert(ProblemData& d) {
  return rotate(d, "w2_scale", 0);
}
bool global_scale_of_wrong_expert(ProblemData& d) {
  return rotate(d, "w2_global_scale", 0);
}
bool scale_of_next_row(ProblemData& d) {
  return d.scales.contains("w2_scale") && d.scales.at("w2_scale").view.size(1) > 2 && rotate(d, "w2_scale", 1);
}
bool scale_of_next_group(ProblemData& d) {
  return rotate(d, "w13_scale", 2);
}

/// The tensor-wide scales of w13 if gate and up have one each.
const Slab* split_scales(const ProblemData& d) {
  for (const char* name : {"w13_scale", "w13_global_scale"}) {
    const auto found = d.scales.find(name);
    if (found != d.scales.end() && found->second.view.size(1) == 2 && found->second.view.size(2) == 1 &&
        d.w13.view.size(1) > 2)
      return &found->second;
  }
  return nullptr;
}
bool swapped_gate_up_scale(ProblemData& d) {
  const Slab* scales = split_scales(d);
  return scales != nullptr && rotate(*scales, 1);
}
bool one_scale_for_gate_and_up(ProblemData& d) {
  const Slab* scales = split_scales(d);
  if (scales == nullptr) return false;
  const TensorView v = scales->view;
  for (std::int64_t e = 0; e < v.size(0); ++e) store(v, e * v.stride(0) + v.stride(1), load(v, e * v.stride(0)));
  return true;
}

bool wrong_nibble_order(ProblemData& d) {
  if (scheme_of(d.problem.quant.weights).bits != 4) return false;
  for (const Slab* slab : {&d.w13, &d.w2})
    for_each_offset(slab->view, [&](std::int64_t offset) {
      std::uint8_t& byte = slab->view.as<std::uint8_t>()[offset];
      byte = static_cast<std::uint8_t>((byte << 4) | (byte >> 4));
    });
  return true;
}

bool dropped_zero_point(ProblemData& d) {
  if (!d.scales.contains("w13_zero_point")) return false;
  for (const char* name : {"w13_zero_point", "w2_zero_point"}) {
    const TensorView points = d.scales.at(name).view;
    for_each_offset(points, [&](std::int64_t offset) { store(points, offset, 8); });
  }
  return true;
}

bool unquantised_activations(ProblemData& d) {
  if (d.problem.quant.activations == QuantKey::none) return false;
  d.problem.quant.activations = QuantKey::none;
  d.scales.erase("a1_scale");
  d.scales.erase("a2_scale");
  return true;
}

bool dropped_a1_scale(ProblemData& d) {
  if (!d.scales.contains("a1_scale")) return false;
  const TensorView scales = d.scales.at("a1_scale").view;
  for_each_offset(scales, [&](std::int64_t offset) { store(scales, offset, 1); });
  return true;
}

constexpr Mutation kQuantMutations[] = {
    {"scale_of_wrong_expert", scale_of_wrong_expert},
    {"w2_scale_of_wrong_expert", w2_scale_of_wrong_expert},
    {"global_scale_of_wrong_expert", global_scale_of_wrong_expert},
    {"scale_of_next_row", scale_of_next_row},
    {"scale_of_next_group", scale_of_next_group},
    {"swapped_gate_up_scale", swapped_gate_up_scale},
    {"one_scale_for_gate_and_up", one_scale_for_gate_and_up},
    {"wrong_nibble_order", wrong_nibble_order},
    {"dropped_zero_point", dropped_zero_point},
    {"unquantised_activations", unquantised_activations},
    {"dropped_a1_scale", dropped_a1_scale},
};

}  // namespace

std::span<const Mutation> quant_mutations() noexcept {
  return kQuantMutations;
}

}  // namespace conclave::verify_detail
