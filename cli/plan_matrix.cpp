// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// One section of the page a function.
#include "plan_matrix.hpp"

#include <fmt/format.h>

#include <functional>
#include <vector>

#include "conclave/plan.hpp"

namespace conclave::cli {
namespace {

/// Widths that every group divides, on a CPU that has every unit.
Problem ordinary_problem() {
  Problem p;
  p.moe.num_experts = 16;
  p.moe.top_k = 4;
  p.moe.hidden_size = 1024;
  p.moe.intermediate_size = 512;
  p.moe.routing = routing_preset(RoutingMethod::renormalize);
  p.device.name = "any x86-64";
  p.device.num_threads = 16;
  p.device.cpu = {true, true, true, true, true, true};
  return p;
}

/// The same on a GPU, for the parts of the CUDA back end.
template <class Part>
Problem ordinary_problem_of(const Entry<Part>& entry) {
  Problem p = ordinary_problem();
  if (entry.name.find("/cuda_") == std::string::npos) return p;
  p.device = DeviceFacts{.device = {DeviceType::cuda, 0}, .name = "any", .num_threads = 132};
  p.device.compute_capability = 90;
  return p;
}

std::string short_name(const std::string& part) {
  return part.substr(part.find('/') + 1);
}

std::string row_of(const std::vector<std::string>& cells) {
  return fmt::format("| {} |\n", fmt::join(cells, " | "));
}
std::string table_head(const std::vector<std::string>& cells) {
  return row_of(cells) + row_of(std::vector<std::string>(cells.size(), "---"));
}

/// What selection chooses, or nothing where nothing fits.
std::optional<Plan> try_plan(const Problem& problem, const Registry& registry) {
  try {
    return plan(problem, registry);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::unsupported) throw;
    return std::nullopt;
  }
}

/// The names of those values with which `problem_with` gives a problem that the entry takes; "all" where it is all.
template <class Part, class Value>
std::string taken(const Entry<Part>& entry, std::span<const Value> values,
                  const std::function<Problem(Value)>& problem_with) {
  std::vector<std::string> names;
  for (const Value value : values)
    if (entry.supports(problem_with(value))) names.emplace_back(name_of(value));
  if (names.empty()) return "none";
  return names.size() == values.size() ? "all" : fmt::format("{}", fmt::join(names, ", "));
}

/// A problem that the entry is made for: its own dtype and key, so that other fields can be asked about.
Problem home_of(const Entry<Experts>& entry) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32})
    for (const QuantKey key : all_quant_keys()) {
      Problem p = ordinary_problem_of(entry);
      p.moe.dtype = p.moe.weight_dtype = dtype;
      p.quant.weights = key;
      if (entry.supports(p)) return p;
    }
  return ordinary_problem_of(entry);
}

std::string experts_section(const Registry& registry) {
  std::string out = "## Experts parts, in the order in which they are tried\n\n" +
                    table_head({"part", "format", "kind", "activations in and out", "weights", "activation functions"});
  constexpr DType kDtypes[] = {DType::f32, DType::bf16, DType::f16};
  for (const auto& entry : registry.experts.entries()) {
    const Problem home = home_of(entry);
    const auto with_dtype = [&](DType dtype) {
      Problem p = home;
      p.moe.dtype = p.moe.weight_dtype = dtype;
      return p;
    };
    const auto with_key = [&](QuantKey key) {
      Problem p = home;
      p.quant.weights = key;
      return p;
    };
    const auto with_activation = [&](Activation activation) {
      Problem p = home;
      p.moe.activation = activation;
      if (activation == Activation::situ) p.moe.activation_params.beta = p.moe.activation_params.linear_beta = 4.0;
      if (activation == Activation::swigluoai_uninterleave) p.moe.activation_params.limit = 7.0;
      return p;
    };
    out += row_of({"`" + entry.name + "`", std::string(name_of(entry.format)),
                   entry.monolithic ? "monolithic" : "modular", taken<Experts, DType>(entry, kDtypes, with_dtype),
                   taken<Experts, QuantKey>(entry, all_quant_keys(), with_key),
                   taken<Experts, Activation>(entry, all_activations(), with_activation)});
  }
  return out;
}

std::string quantisation_section(const Registry& registry) {
  std::vector<QuantKey> activations;
  const auto chosen = [&](QuantKey weights, QuantKey inputs) {
    Problem p = ordinary_problem();
    p.quant = {weights, inputs};
    const std::optional<Plan> plan = try_plan(p, registry);
    return plan ? short_name(plan->experts.chosen) : std::string("-");
  };
  std::vector<std::string> head{"weights \\ activations"};
  for (const QuantKey key : all_quant_keys())
    if (chosen(QuantKey::none, key) != "-") {
      activations.push_back(key);
      head.emplace_back(name_of(key));
    }
  std::string out = "## Quantisation: the experts that are chosen for bf16 activations\n\n" + table_head(head);
  for (const QuantKey weights : all_quant_keys()) {
    if (chosen(weights, QuantKey::none) == "-") continue;
    std::vector<std::string> cells{std::string(name_of(weights))};
    for (const QuantKey inputs : activations) cells.push_back(chosen(weights, inputs));
    out += row_of(cells);
  }
  return out;
}

std::string exchange_section(const Registry& registry) {
  std::string out = "## Two ranks with tokens of their own, experts in parallel\n\n" +
                    table_head({"all2all", "prepare/finalize", "experts"});
  for (const All2All exchange :
       {All2All::none, All2All::allgather_reducescatter, All2All::all_to_all, All2All::low_latency}) {
    Problem p = ordinary_problem();
    p.parallel = make_parallel(1, 0, 1, 0, 2, 0, 1, true, exchange);
    const std::optional<Plan> plan = try_plan(p, registry);
    out += row_of({std::string(name_of(exchange)), plan ? "`" + plan->prepare_finalize.chosen + "`" : "-",
                   plan ? "`" + plan->experts.chosen + "`" : "-"});
  }
  return out;
}

std::string routing_section(const Registry& registry) {
  std::string out = "## Routers\n\n" + table_head({"part", "methods"});
  for (const auto& entry : registry.routers.entries()) {
    const auto with_method = [&entry](RoutingMethod method) {
      Problem p = ordinary_problem_of(entry);
      p.moe.routing = routing_preset(method);
      return p;
    };
    out += row_of({"`" + entry.name + "`", taken<Router, RoutingMethod>(entry, all_routing_methods(), with_method)});
  }
  return out;
}

}  // namespace

std::string support_matrix(const Registry& registry) {
  return "# What is supported\n\nMade by `conclave plan --matrix`, which asks the parts themselves for a problem of " +
         std::string(
             "ordinary sizes on a CPU with every instruction set that a part asks for, parts called cuda on a Hopper "
             "GPU. A test compares this ") +
         "page with what the command prints.\n\n" + experts_section(registry) + "\n" + quantisation_section(registry) +
         "\n" + exchange_section(registry) + "\n" + routing_section(registry);
}

}  // namespace conclave::cli
