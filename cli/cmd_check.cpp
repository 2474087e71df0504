// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// conclave check: the MoE blocks of a checkpoint against expected outputs, for each kernel and compute type.
#include <algorithm>
#include <memory>
#include <vector>

#include "block_io.hpp"
#include "command.hpp"
#include "compare.hpp"
#include "convert.hpp"
#include "error.hpp"
#include "json_out.hpp"
#include "layer_run.hpp"
#include "machine.hpp"
#include "option_set.hpp"
#include "parse.hpp"
#include "progress.hpp"
#include "ranks.hpp"
#include "record.hpp"
#include "table.hpp"

namespace conclave::cli {
namespace {

struct CheckCommand {
  CommonOptions common;
  std::string model, expected, block = "all", dtypes = "f32,bf16", experts, prepare, record, bound = "format";
  std::optional<double> rtol, atol;
  bool ep = false;
  RankOptions ranks{0, "mpi"};
  std::string placement = "linear";
};

struct Row {
  std::string block, experts;
  DType dtype;
  bool converted_weights = false;
  bool exact_input = true;  ///< The file's input survives the conversion to dtype.
  Tolerance tolerance;
  Comparison errors;
  std::optional<IdComparison> ids;  ///< Absent: the file has no ids to compare with.
  std::string prepare = "";
  std::optional<bool> same_bits;  ///< As the same experts on one rank; absent: it ran there.
  bool must_have_same_bits = false;
  bool ok() const {
    return errors.ok && (!ids || ids->different == 0) && (!must_have_same_bits || same_bits.value_or(true));
  }
};

struct Refusal {
  std::string experts;
  DType dtype;
  std::string reason;
  bool operator==(const Refusal&) const = default;
};

struct Report {
  std::vector<Row> rows;
  std::vector<Refusal> refusals;
  std::vector<std::string> skipped;
  bool ok() const {
    return !rows.empty() && std::all_of(rows.begin(), rows.end(), [](const Row& row) { return row.ok(); });
  }
};

/// Expected outputs are mostly those of the original model, so quantised weights may be as far off as their format is.
Tolerance tolerance_for(const CheckCommand& o, DType dtype, double error_bound) {
  Tolerance tolerance = tolerance_of(dtype);
  if (o.bound == "format") tolerance.relative = std::max(tolerance.relative, error_bound);
  if (o.rtol || o.atol) tolerance.per_element = CaseTolerance{o.atol.value_or(0), o.rtol.value_or(0)};
  return tolerance;
}

/// One block of the checkpoint with what the file says about it.
struct Block {
  const BlockInfo& info;
  LayerWeights weights;
  ConstTensorView input, output;
  std::optional<Tensor> ids;
};

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.view().bytes() == b.view().bytes() &&
         std::equal(a.as<std::byte>(), a.as<std::byte>() + a.view().bytes(), b.as<std::byte>());
}

class Checker {
 public:
  /// `ranks` null: on one rank.
  Checker(const CheckCommand& options, const Machine& machine, const Ranks* ranks)
      : o_(options),
        machine_(machine),
        ranks_(ranks),
        registry_(builtin_registry()),
        checkpoint_(o_.model),
        file_(o_.expected) {
    for (const std::string& dtype : split(o_.dtypes, ',')) dtypes_.push_back(parse_dtype("--dtype", dtype));
    if (o_.experts == "all")
      for (const auto& entry : registry_.experts.entries()) parts_.push_back(entry.name);
    else
      parts_.push_back(o_.experts.empty() ? "" : part_name("--experts", registry_.experts, o_.experts));
  }

  Report run() {
    Progress progress;
    for (const std::string& name : blocks_to_run(checkpoint_, file_, o_.block, report_.skipped)) {
      const Block block = load(name);
      for (const std::string& part : parts_)
        for (const DType dtype : dtypes_) {
          if (ranks_ == nullptr || ranks_->is_root())
            progress.show(fmt::format("{} {} {}", name, part, name_of(dtype)));
          check(block, part, dtype);
        }
    }
    return std::move(report_);
  }

 private:
  Block load(const std::string& name) const {
    const BlockInfo& info = checkpoint_.block(name);
    const ConstTensorView input = rows_of(file_, name + ".input", info.config.hidden_size);
    const ConstTensorView output = rows_of(file_, name + ".output", info.config.hidden_size);
    if (input.size(0) != output.size(0))
      bad_input("{}: \"{}.output\" has {} rows, expected {} as \"{}.input\"", file_.path(), name, output.size(0),
                input.size(0), name);
    return {info, checkpoint_.load(name), input, output, ids_of(file_, name, input.size(0), info.config.top_k)};
  }

  Variant variant_of(const Block& block, const std::string& part, DType dtype) const {
    Problem problem{block.info.config, {}, block.info.quant, machine_.facts};
    problem.moe.max_num_tokens = block.input.size(0);
    problem.moe.router_logits_dtype = DType::f32;
    const PlanOptions options = pins_of(part);
    if (ranks_ != nullptr)
      problem = problem_of_rank(problem, options.prepare_finalize, block.input.size(0), ranks_->size(), 0,
                                placement_from_name(o_.placement));
    return plan_variant(problem, dtype, registry_, options);
  }

  PlanOptions pins_of(const std::string& part) const {
    PlanOptions options;
    options.experts = part;
    // Over ranks, the exchange whose sums run as on one rank: then the bits can be compared.
    const std::string prepare = ranks_ != nullptr && o_.prepare.empty() ? "low_latency" : o_.prepare;
    if (!prepare.empty()) options.prepare_finalize = part_name("--prepare", registry_.prepare_finalizes, prepare);
    return options;
  }

  /// The layer on the ranks, and on one rank with the same experts beside it.
  LayerResult run_ranked(const Block& block, const Variant& variant, const LayerWeights& weights,
                         const LayerInput& input, Row& row) const {
    PlanOptions pins = pins_of(variant.plan->experts.chosen);
    const LayerResult result = run_on_ranks(*ranks_, variant.plan->problem, registry_, pins, weights, input,
                                            placement_from_name(o_.placement), machine_.stream);
    row.prepare = variant.plan->prepare_finalize.chosen;
    row.must_have_same_bits = variant.plan->problem.parallel.all2all == All2All::low_latency;
    Problem alone = variant.plan->problem;
    alone.parallel = {};
    alone.moe.max_num_tokens = block.input.size(0);
    pins.prepare_finalize.clear();
    const LayerResult expected = run_layer(plan(alone, registry_, pins), registry_, weights, input, machine_.stream);
    row.same_bits = same_bytes(result.output, expected.output);
    return result;
  }

  void refuse(const Refusal& refusal) {
    auto& all = report_.refusals;
    if (std::find(all.begin(), all.end(), refusal) == all.end()) all.push_back(refusal);
  }

  void check(const Block& block, const std::string& part, DType dtype) {
    const Variant variant = variant_of(block, part, dtype);
    if (!variant.plan) return refuse({part.empty() ? "every part" : part, dtype, variant.refusal});
    const LayerWeights weights = weights_for(variant, block.weights, *machine_.executor);
    const Tensor exact = convert(block.input, DType::f32, "input", *machine_.executor);
    const Tensor hidden = convert(block.input, dtype, "input", *machine_.executor);
    Row row{block.info.name, variant.plan->experts.chosen, dtype, variant.convert_weights};
    row.tolerance = tolerance_for(o_, dtype, block.info.error_bound);
    row.exact_input = same_values(exact, hidden);
    LayerInput input;
    input.hidden_states = hidden;
    Tensor logits;
    if (!row.exact_input && weights.router_weight) {
      // The expected ids are those of the input as it stands in the file. Rounding it would decide near ties anew, and
      // then the experts of two different choices would be compared.
      logits = Tensor(DType::f32, {hidden.view().size(0), block.info.config.num_experts});
      router_logits(exact, *weights.router_weight, weights.router_bias, logits, machine_.host_stream);
      input.router_logits = logits;
    }
    const LayerResult result = ranks_ != nullptr ? run_ranked(block, variant, weights, input, row)
                                                 : run_layer(*variant.plan, registry_, weights, input, machine_.stream);
    row.errors = compare(result.output, block.output, row.tolerance, *machine_.executor);
    if (block.ids) row.ids = compare_ids(result.topk_ids, *block.ids, block.info.config.top_k);
    if (!o_.record.empty() && report_.rows.empty() && (ranks_ == nullptr || ranks_->is_root()))
      record(block, variant, weights, input, row);
    report_.rows.push_back(row);
  }

  bool same_values(const Tensor& exact, const Tensor& rounded) const {
    const Tensor back = convert(rounded, DType::f32, "input", *machine_.executor);
    return std::equal(exact.as<float>(), exact.as<float>() + exact.view().numel(), back.as<float>());
  }

  void record(const Block& block, const Variant& variant, const LayerWeights& weights, const LayerInput& input,
              const Row& row) const {
    Recording recording{*variant.plan, weights, input.hidden_states, input.router_logits, block.output, {}, {}, ""};
    // Slots of a case are in the library's order; the same ids in another order would be wrong there.
    if (block.ids && (row.ids->same_order || row.ids->different > 0)) recording.expected_topk_ids = *block.ids;
    recording.tolerance = tolerance_for(o_, variant.plan->problem.moe.dtype, 0).per_element;
    recording.note = fmt::format("conclave check {} {}", o_.model, block.info.name);
    record_case(o_.record, recording, machine_.stream);
  }

  const CheckCommand& o_;
  const Machine& machine_;
  const Ranks* ranks_;
  Registry registry_;
  Checkpoint checkpoint_;
  SafetensorsFile file_;
  std::vector<DType> dtypes_;
  std::vector<std::string> parts_;  ///< Empty name: what plan chooses.
  Report report_;
};

std::string ids_text(const Row& row) {
  if (!row.ids) return "n.a.";
  if (row.ids->different > 0) return fmt::format("{} differ", row.ids->different);
  return row.ids->same_order ? "exact" : "exact, other order";
}

std::string bits_text(const Row& row) {
  return row.same_bits ? *row.same_bits ? "same bits" : "other bits" : "n.a.";
}

void print_report(const Report& report) {
  Table table({"block", "kernel", "dtype", "max abs error", "relative error", "tolerance", "ids", "verdict"},
              "lllrrrll");
  for (const Row& r : report.rows)
    table.add({r.block, r.experts, std::string(name_of(r.dtype)), fmt::format("{:.3e}", r.errors.max_abs),
               fmt::format("{:.3e}", r.errors.relative), to_string(r.tolerance), ids_text(r), r.ok() ? "ok" : "WRONG"});
  if (!table.empty()) print_text(table.str());
  for (const Row& r : report.rows)
    if (r.same_bits)
      print_text(fmt::format("{} {} in {} over ranks by {}: {} as on one rank\n", r.block, r.experts, name_of(r.dtype),
                             r.prepare, bits_text(r)));
  for (const Refusal& r : report.refusals)
    print_text(fmt::format("not run: {} in {}: {}\n", r.experts, name_of(r.dtype), r.reason));
  if (std::any_of(report.rows.begin(), report.rows.end(), [](const Row& r) { return !r.exact_input; }))
    print_text(
        "some inputs of the file are not exact in bf16 or f16: there, router logits come from the input as it is\n");
  for (const std::string& block : report.skipped) print_text(fmt::format("not run: {}: no input in the file\n", block));
  const auto wrong = std::count_if(report.rows.begin(), report.rows.end(), [](const Row& r) { return !r.ok(); });
  if (report.rows.empty())
    print_text("nothing ran\n");
  else
    print_text(fmt::format("{} of {} within tolerance\n", static_cast<std::int64_t>(report.rows.size()) - wrong,
                           report.rows.size()));
}

Json report_json(const Report& report) {
  Json rows = Json::array(), refusals = Json::array();
  for (const Row& r : report.rows)
    rows.push_back({{"block", r.block},
                    {"experts", r.experts},
                    {"dtype", name_of(r.dtype)},
                    {"converted_weights", r.converted_weights},
                    {"exact_input", r.exact_input},
                    {"max_abs_error", r.errors.max_abs},
                    {"relative_error", r.errors.relative},
                    {"tolerance", to_string(r.tolerance)},
                    {"different_ids", r.ids ? Json(r.ids->different) : Json(nullptr)},
                    {"ids_in_order", r.ids ? Json(r.ids->same_order) : Json(nullptr)},
                    {"same_bits_as_one_rank", r.same_bits ? Json(*r.same_bits) : Json(nullptr)},
                    {"ok", r.ok()}});
  for (const Refusal& r : report.refusals)
    refusals.push_back({{"experts", r.experts}, {"dtype", name_of(r.dtype)}, {"reason", r.reason}});
  return {{"ok", report.ok()}, {"rows", rows}, {"refusals", refusals}, {"skipped_blocks", report.skipped}};
}

int run_check(const CheckCommand& o) {
  if (o.bound != "format" && o.bound != "dtype") bad_input("--bound: given {}, expected format or dtype", o.bound);
  if (!o.ep && o.ranks.ranks != 0) bad_input("--ranks: given {} without --ep", o.ranks.ranks);
  std::optional<Ranks> ranks;
  if (o.ep) ranks.emplace(o.ranks);
  const Machine machine = open_machine(o.common, Ceilings::cached);
  const Report report = Checker(o, machine, ranks ? &*ranks : nullptr).run();
  if (ranks && !ranks->is_root()) return report.ok() ? kOk : kWrong;
  if (o.common.json)
    print_json(report_json(report));
  else
    print_report(report);
  return report.ok() ? kOk : kWrong;
}

}  // namespace

Command add_check(CLI::App& app) {
  auto o = std::make_shared<CheckCommand>();
  OptionSet set(
      app, "check", "Compare the blocks of a checkpoint with expected outputs",
      "Without --rtol or --atol, the relative error of the whole output must be under 1e-5 (f32) or\n"
      "6e-3 (bf16, f16); or, for quantised weights, under what their format costs against the model they were made\n"
      "from. --bound dtype: the expected outputs are those of the quantised weights themselves.\n"
      "With --ep, experts are spread over ranks and each rank brings its share of the tokens; the result must\n"
      "then be that of one rank, bit for bit, unless --prepare names an exchange that adds in another order.\n"
      "Examples: conclave check data/tiny-moe --expected data/tiny-moe/io.safetensors --experts all\n"
      "          mpirun -n 4 conclave check data/tiny-moe --expected data/tiny-moe/io.safetensors --ep");
  set.add("MODEL", o->model, "Checkpoint folder", Need::required)
      .add("--expected", o->expected, "Safetensors file with <block>.input and <block>.output", Need::required)
      .add("--block", o->block, "One block, or all")
      .add("--experts", o->experts, "This experts part, or all; default: what plan chooses")
      .add("--prepare", o->prepare, "This prepare/finalize part")
      .add("--dtype", o->dtypes, "Compute types, separated by commas")
      .add("--rtol", o->rtol, "Compare element by element: |a - b| <= atol + rtol * |b|")
      .add("--atol", o->atol, "See --rtol")
      .add("--bound", o->bound, "Judge quantised weights by the error of their format, or of the compute type (dtype)")
      .add("--record", o->record, "Write the problem of the first row as a case file")
      .flag("--ep", o->ep, "Experts in parallel over the ranks of --comm")
      .add("--placement", o->placement, "Which rank holds which expert: linear or round_robin");
  add_rank_options(set, o->ranks);
  add_common_options(set, o->common);
  return {set.app(), [o] { return run_check(*o); }};
}

}  // namespace conclave::cli
