// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// conclave quantize: a checkpoint in floats -> one whose routed experts are codes.
#include <memory>

#include "command.hpp"
#include "conclave/quantise.hpp"
#include "conclave/quantise_checkpoint.hpp"
#include "error.hpp"
#include "json_out.hpp"
#include "machine.hpp"
#include "option_set.hpp"

namespace conclave::cli {
namespace {

struct QuantizeCommand {
  CommonOptions common;
  std::string model, weights, output;
};

int run_quantize(const QuantizeCommand& o) {
  check_device(o.common.device);
  const QuantKey key = quant_key_from_name(o.weights);
  const QuantisedCheckpoint done = quantise_checkpoint(o.model, key, o.output);
  if (o.common.json) {
    print_json({{"output", o.output},
                {"weights", name_of(key)},
                {"format", done.format},
                {"blocks", done.num_blocks},
                {"bytes_before", done.bytes_before},
                {"bytes_after", done.bytes_after},
                {"error_bound", error_bound(key)}});
    return kOk;
  }
  print_text(fmt::format("{}: {} blocks as {}, {}; experts {:.1f} MB -> {:.1f} MB\nwritten: {}\n", o.model,
                         done.num_blocks, done.format, describe(key), static_cast<double>(done.bytes_before) * 1e-6,
                         static_cast<double>(done.bytes_after) * 1e-6, o.output));
  return kOk;
}

std::string known_keys() {
  std::string names;
  for (const QuantKey key : writable_quant_keys()) names += (names.empty() ? "" : ", ") + std::string(name_of(key));
  return names;
}

}  // namespace

Command add_quantize(CLI::App& app) {
  auto o = std::make_shared<QuantizeCommand>();
  OptionSet set(app, "quantize", "Write a checkpoint with its routed experts in codes",
                "Everything but the routed experts is copied. Layouts: docs/formats.md.\n"
                "Example: conclave quantize data/tiny-moe --weights int4_group32 --output tiny-int4");
  set.add("MODEL", o->model, "Checkpoint folder", Need::required)
      .add("--weights", o->weights, "One of " + known_keys(), Need::required)
      .add("--output", o->output, "Folder to write; it must not exist, or be empty", Need::required);
  add_common_options(set, o->common);
  return {set.app(), [o] { return run_quantize(*o); }};
}

}  // namespace conclave::cli
