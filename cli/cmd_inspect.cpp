// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// conclave inspect: the MoE blocks of a checkpoint, and the tensors that no rule names.
#include <map>
#include <memory>

#include "command.hpp"
#include "conclave/checkpoint.hpp"
#include "error.hpp"
#include "json_out.hpp"
#include "machine.hpp"
#include "option_set.hpp"
#include "table.hpp"

namespace conclave::cli {
namespace {

struct InspectCommand {
  CommonOptions common;
  std::string model;
};

Json block_json(const BlockInfo& block) {
  return {{"name", block.name},
          {"moe", to_json(block.config)},
          {"quant", to_json(block.quant)},
          {"format", block.format},
          {"stored_key", name_of(block.stored_key)},
          {"decoded_because", block.decoded_because},
          {"weight_bytes", block.weight_bytes},
          {"num_tensors", block.num_tensors}};
}

std::string shared_text(const SharedExpertConfig& shared) {
  if (shared.intermediate_size == 0) return "-";
  return fmt::format("{}{}", shared.intermediate_size, shared.sigmoid_gate ? " gated" : "");
}

std::string routing_text(const RoutingConfig& r) {
  std::string text(name_of(r.method));
  if (r.num_expert_group > 1) text += fmt::format(" {}/{} groups", r.topk_group, r.num_expert_group);
  if (r.routed_scaling_factor != 1.0) text += fmt::format(" x{}", r.routed_scaling_factor);
  return text;
}

void print_blocks(const Checkpoint& checkpoint) {
  Table table({"block", "E", "k", "H", "I", "shared", "zero", "routing", "activation", "w13", "bias", "weights", "MB",
               "tensors"},
              "lrrrrlrlllllrr");
  double total = 0;
  for (const BlockInfo& b : checkpoint.blocks()) {
    const MoeConfig& c = b.config;
    const double megabytes = static_cast<double>(b.weight_bytes) * 1e-6;
    total += megabytes;
    table.add({b.name, std::to_string(c.num_experts), std::to_string(c.top_k), std::to_string(c.hidden_size),
               std::to_string(c.intermediate_size), shared_text(c.shared), std::to_string(c.zero_experts),
               routing_text(c.routing), std::string(name_of(c.activation)), std::string(name_of(c.w13_layout)),
               c.has_w13_bias || c.has_w2_bias ? "yes" : "no",
               std::string(b.quant.weights == QuantKey::none ? name_of(c.weight_dtype) : name_of(b.quant.weights)),
               fmt::format("{:.1f}", megabytes), std::to_string(b.num_tensors)});
  }
  print_text(fmt::format("{}: {}, {} MoE blocks, {:.1f} MB\n\n{}", checkpoint.folder(), checkpoint.model_type(),
                         checkpoint.blocks().size(), total, table.str()));
}

/// Blocks that are stored the same way share a line.
void print_formats(const Checkpoint& checkpoint) {
  std::map<std::string, std::pair<std::string, int>> lines;
  for (const BlockInfo& b : checkpoint.blocks()) {
    if (b.format.empty()) continue;
    std::string text = b.format;
    if (b.stored_key != QuantKey::none) text += fmt::format(", {}: {}", name_of(b.stored_key), describe(b.stored_key));
    text += b.decoded_because.empty() ? "; computed from the codes"
                                      : fmt::format("; decoded to f32: {}", b.decoded_because);
    auto [entry, is_new] = lines.try_emplace(text, b.name, 0);
    ++entry->second.second;
  }
  for (const auto& [text, where] : lines)
    print_text(fmt::format("\n{}{}: stored as {}\n", where.first,
                           where.second > 1 ? fmt::format(" and {} more", where.second - 1) : "", text));
}

void print_not_understood(const std::vector<std::string>& tensors) {
  if (tensors.empty()) return print_text("\nEvery tensor of these blocks was understood.\n");
  std::string text = fmt::format("\n{} tensors were not understood:\n", tensors.size());
  for (const std::string& name : tensors) text += "  " + name + "\n";
  print_text(text);
}

int run_inspect(const InspectCommand& options) {
  check_device(options.common.device);
  const Checkpoint checkpoint(options.model);
  if (options.common.json) {
    Json blocks = Json::array();
    for (const BlockInfo& block : checkpoint.blocks()) blocks.push_back(block_json(block));
    print_json({{"folder", checkpoint.folder()},
                {"model_type", checkpoint.model_type()},
                {"blocks", blocks},
                {"not_understood", checkpoint.not_understood()}});
    return kOk;
  }
  print_blocks(checkpoint);
  print_formats(checkpoint);
  print_not_understood(checkpoint.not_understood());
  return kOk;
}

}  // namespace

Command add_inspect(CLI::App& app) {
  auto o = std::make_shared<InspectCommand>();
  OptionSet set(app, "inspect", "The MoE blocks of a checkpoint", "Example: conclave inspect data/tiny-moe");
  set.add("MODEL", o->model, "Checkpoint folder", Need::required);
  add_common_options(set, o->common);
  return {set.app(), [o] { return run_inspect(*o); }};
}

}  // namespace conclave::cli
