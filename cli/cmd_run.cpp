// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// conclave run: the MoE blocks of a checkpoint on the inputs of a safetensors file; the outputs go into another.
#include <filesystem>
#include <memory>
#include <vector>

#include "block_io.hpp"
#include "command.hpp"
#include "convert.hpp"
#include "error.hpp"
#include "json_out.hpp"
#include "layer_run.hpp"
#include "machine.hpp"
#include "option_set.hpp"
#include "parse.hpp"
#include "progress.hpp"
#include "record.hpp"

namespace conclave::cli {
namespace {

struct RunCommand {
  CommonOptions common;
  std::string model, input, output, block = "all", dtype, experts, prepare, record;
};

struct BlockResult {
  std::string block, experts, prepare;
  DType dtype;
  LayerResult result;
};

BlockResult run_block(const RunCommand& o, const Checkpoint& checkpoint, const SafetensorsFile& file,
                      const std::string& name, const Registry& registry, const Machine& machine, bool record) {
  const BlockInfo& block = checkpoint.block(name);
  const ConstTensorView rows = rows_of(file, name + ".input", block.config.hidden_size);
  Problem problem{block.config, {}, block.quant, machine.facts};
  problem.moe.max_num_tokens = rows.size(0);
  const DType dtype = o.dtype.empty() ? block.config.dtype : parse_dtype("--dtype", o.dtype);
  PlanOptions options;
  if (!o.experts.empty()) options.experts = part_name("--experts", registry.experts, o.experts);
  if (!o.prepare.empty()) options.prepare_finalize = part_name("--prepare", registry.prepare_finalizes, o.prepare);
  const Variant variant = plan_variant(problem, dtype, registry, options);
  if (!variant.plan) throw Error(ErrorKind::unsupported, variant.report);

  const LayerWeights weights = weights_for(variant, checkpoint.load(name), *machine.executor);
  const Tensor hidden = convert(rows, dtype, "input", *machine.executor);
  if (record) {
    const Recording recording{*variant.plan, weights, hidden, {}, {}, {}, {}, "conclave run " + o.model + " " + name};
    record_case(o.record, recording, machine.stream);
  }
  return {name, variant.plan->experts.chosen, variant.plan->prepare_finalize.chosen, dtype,
          run_layer(*variant.plan, registry, weights, {.hidden_states = hidden}, machine.stream)};
}

/// The input must still be whole when the output replaces it; a mapped file that is renamed over is, but a user who
/// names one file twice has made a mistake.
void check_paths(const RunCommand& o) {
  std::error_code ignored;
  if (std::filesystem::equivalent(o.input, o.output, ignored))
    bad_input("--output: {} is the input file, expected another", o.output);
}

void print_result(const RunCommand& o, const std::vector<BlockResult>& results) {
  Json blocks = Json::array();
  std::string text;
  for (const BlockResult& r : results) {
    blocks.push_back({{"block", r.block},
                      {"num_tokens", r.result.output.view().size(0)},
                      {"dtype", name_of(r.dtype)},
                      {"experts", r.experts},
                      {"prepare_finalize", r.prepare}});
    text += fmt::format("{}: {} tokens in {} through {}\n", r.block, r.result.output.view().size(0), name_of(r.dtype),
                        r.experts);
  }
  if (o.common.json)
    print_json({{"output", o.output}, {"blocks", blocks}});
  else
    print_text(text + "written: " + o.output + "\n");
}

int run_run(const RunCommand& o) {
  const Machine machine = open_machine(o.common, Ceilings::cached);
  const Registry registry = builtin_registry();
  const Checkpoint checkpoint(o.model);
  const SafetensorsFile file(o.input);
  check_paths(o);
  std::vector<std::string> skipped;
  std::vector<BlockResult> results;
  std::vector<NamedTensor> tensors;
  {
    Progress progress;
    for (const std::string& name : blocks_to_run(checkpoint, file, o.block, skipped)) {
      progress.show(name);
      results.push_back(run_block(o, checkpoint, file, name, registry, machine, !o.record.empty() && results.empty()));
      const LayerResult& r = results.back().result;
      tensors.push_back({name + ".output", r.output});
      tensors.push_back({name + ".topk_ids", r.topk_ids});
      tensors.push_back({name + ".topk_weights", r.topk_weights});
    }
  }
  write_safetensors(o.output, tensors);
  for (const std::string& name : skipped)
    fmt::print(stderr, "conclave: {} has no tensor {}.input: block skipped\n", o.input, name);
  print_result(o, results);
  return kOk;
}

}  // namespace

Command add_run(CLI::App& app) {
  auto o = std::make_shared<RunCommand>();
  OptionSet set(app, "run", "Run the blocks of a checkpoint on <block>.input of a file",
                "Example: conclave run data/tiny-moe --input data/tiny-moe/io.safetensors --output out.safetensors");
  set.add("MODEL", o->model, "Checkpoint folder", Need::required)
      .add("--input", o->input, "Safetensors file with <block>.input, [M, H] or [1, M, H]", Need::required)
      .add("--output", o->output, "Written: <block>.output, <block>.topk_ids, <block>.topk_weights", Need::required)
      .add("--block", o->block, "One block, or all")
      .add("--dtype", o->dtype, "Compute type: f32, bf16 or f16; default: the checkpoint's")
      .add("--experts", o->experts, "This experts part")
      .add("--prepare", o->prepare, "This prepare/finalize part")
      .add("--record", o->record, "Write the problem of the first block as a case file");
  add_common_options(set, o->common);
  return {set.app(), [o] { return run_run(*o); }};
}

}  // namespace conclave::cli
