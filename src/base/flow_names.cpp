// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Names of the enums that travel between stages.
#include "base/names.hpp"
#include "conclave/config.hpp"
#include "conclave/expert_map.hpp"
#include "conclave/flow.hpp"
#include "conclave/reduce.hpp"

namespace conclave {
namespace {

constexpr NameTable<ActivationFormat, 2> kFormats{{
    {ActivationFormat::standard, "standard"},
    {ActivationFormat::batched_experts, "batched_experts"},
}};
constexpr NameTable<ExpertOutputKind, 4> kKinds{{
    {ExpertOutputKind::unreduced_standard, "unreduced_standard"},
    {ExpertOutputKind::unreduced_batched, "unreduced_batched"},
    {ExpertOutputKind::reduced, "reduced"},
    {ExpertOutputKind::unfinalized, "unfinalized"},
}};
constexpr NameTable<WeightAndReduceKind, 4> kReduces{{
    {WeightAndReduceKind::delegate, "delegate"},
    {WeightAndReduceKind::no_op, "no_op"},
    {WeightAndReduceKind::contiguous, "contiguous"},
    {WeightAndReduceKind::naive_batched, "naive_batched"},
}};
constexpr NameTable<All2All, 4> kAll2Alls{{
    {All2All::none, "none"},
    {All2All::allgather_reducescatter, "allgather_reducescatter"},
    {All2All::all_to_all, "all_to_all"},
    {All2All::low_latency, "low_latency"},
}};
constexpr NameTable<Placement, 2> kPlacements{{
    {Placement::linear, "linear"},
    {Placement::round_robin, "round_robin"},
}};

}  // namespace

std::string_view name_of(ActivationFormat format) noexcept {
  return name_in(kFormats, format);
}
std::string_view name_of(ScaleLayout layout) noexcept {
  return layout == ScaleLayout::row_major ? "row_major" : "column_major";
}
std::string_view name_of(ExpertOutputKind kind) noexcept {
  return name_in(kKinds, kind);
}
std::string_view name_of(WeightAndReduceKind kind) noexcept {
  return name_in(kReduces, kind);
}
std::string_view name_of(All2All all2all) noexcept {
  return name_in(kAll2Alls, all2all);
}
All2All all2all_from_name(std::string_view name) {
  return value_in(kAll2Alls, "all2all", name);
}
std::string_view name_of(Placement placement) noexcept {
  return name_in(kPlacements, placement);
}
Placement placement_from_name(std::string_view name) {
  return value_in(kPlacements, "placement", name);
}

}  // namespace conclave
