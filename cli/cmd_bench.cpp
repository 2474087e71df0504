// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// conclave bench: the whole layer against the floor that this machine allows.
#include <algorithm>
#include <memory>

#include "bench_run.hpp"
#include "command.hpp"
#include "error.hpp"
#include "json_out.hpp"
#include "option_set.hpp"
#include "parse.hpp"
#include "table.hpp"

namespace conclave::cli {
namespace {

struct BenchCommand {
  CommonOptions common;
  ProblemOptions problem;
  std::string tokens = "1,8,64,512", experts;
  BenchOptions bench;
  RankOptions ranks;
  std::string prepare;
};

std::string micros(double value) {
  return value < 100 ? fmt::format("{:.1f}", value) : fmt::format("{:.0f}", value);
}

std::string stage_text(const std::optional<Timing>& timing) {
  return timing ? micros(timing->median_us) : "-";
}

void print_header(const BenchCommand& o, const SelectedProblem& selected, const Machine& machine) {
  const Problem& p = selected.problem;
  const MoeConfig& c = p.moe;
  const DeviceFacts& f = machine.facts;
  print_text(fmt::format("{}: E {}, k {}, H {}, I {}, {} x {} weights, routing {}\n", selected.label, c.num_experts,
                         c.top_k, c.hidden_size, c.intermediate_size, name_of(c.dtype),
                         p.quant.weights == QuantKey::none ? name_of(c.weight_dtype) : name_of(p.quant.weights),
                         o.bench.routing));
  print_text(fmt::format("{}, {} threads: {:.1f} GB/s, {:.1f} GFLOP/s f32, {:.1f} bf16, {:.1f} f16 (measured)\n\n",
                         f.name, f.num_threads, f.bytes_per_second * 1e-9, f.f32_flops * 1e-9, f.bf16_flops * 1e-9,
                         f.f16_flops * 1e-9));
}

void print_report(const BenchReport& report, bool stages) {
  std::vector<std::string> header = {"tokens", "kernel",  "experts hit", "median us", "min us",      "max us",
                                     "GB/s",   "TFLOP/s", "floor us",    "bound",     "floor/median"};
  std::string alignment = "rlrrrrrrrlr";
  const bool forecasts =
      std::any_of(report.rows.begin(), report.rows.end(), [](const BenchRow& row) { return row.forecast_us > 0; });
  if (forecasts) {
    header.push_back("expected us");
    alignment += "r";
  }
  if (stages) {
    header.insert(header.end(), {"router us", "prepare+experts+finalize us", "shared us"});
    alignment += "rrr";
  }
  Table table(header, alignment);
  for (const BenchRow& row : report.rows) {
    const Point& p = row.point;
    std::vector<std::string> cells = {std::to_string(row.num_tokens),
                                      row.experts,
                                      fmt::format("{:.1f}", p.active_experts),
                                      micros(p.timing.median_us),
                                      micros(p.timing.min_us),
                                      micros(p.timing.max_us),
                                      fmt::format("{:.1f}", p.gigabytes_per_second()),
                                      fmt::format("{:.4f}", p.teraflops()),
                                      micros(p.work.floor_us),
                                      p.work.memory_bound ? "memory" : "compute",
                                      fmt::format("{:.0f}%", 100 * p.ratio())};
    if (forecasts) cells.push_back(micros(row.forecast_us));
    if (stages)
      for (const auto* stage : {&row.stages.router, &row.stages.routed, &row.stages.shared})
        cells.push_back(stage_text(*stage));
    table.add(cells);
  }
  print_text(table.str());
  for (const std::string& note : report.notes) print_text(note + "\n");
}

Json timing_json(const std::optional<Timing>& t) {
  if (!t) return nullptr;
  return {{"median_us", t->median_us}, {"min_us", t->min_us}, {"max_us", t->max_us}, {"iterations", t->iterations}};
}

Json row_json(const BenchRow& row, bool stages) {
  const Point& p = row.point;
  Json json = {{"num_tokens", row.num_tokens},
               {"experts", row.experts},
               {"active_experts", p.active_experts},
               {"busiest_expert_rows", p.busiest},
               {"time", timing_json(p.timing)},
               {"weight_bytes", p.work.weight_bytes},
               {"activation_bytes", p.work.activation_bytes},
               {"flops", p.work.flops},
               {"gigabytes_per_second", p.gigabytes_per_second()},
               {"teraflops", p.teraflops()},
               {"floor_us", p.work.floor_us},
               {"memory_bound", p.work.memory_bound},
               {"floor_over_median", p.ratio()},
               {"forecast_us", row.forecast_us}};
  if (stages)
    json["stages"] = {{"router", timing_json(row.stages.router)},
                      {"prepare_experts_finalize", timing_json(row.stages.routed)},
                      {"shared", timing_json(row.stages.shared)}};
  return json;
}

std::vector<std::string> parts_of(const std::string& option, const Registry& registry) {
  if (option.empty()) return {""};
  if (option != "all") return {part_name("--experts", registry.experts, option)};
  std::vector<std::string> names;
  for (const auto& entry : registry.experts.entries()) names.push_back(entry.name);
  return names;
}

int run_bench(const BenchCommand& o) {
  const Machine machine = open_machine(o.common, Ceilings::measured);
  const Registry registry = builtin_registry();
  const SelectedProblem selected = select_problem(o.problem, machine);
  BenchOptions options = o.bench;
  options.tokens = parse_counts("--tokens", o.tokens);
  if (*std::min_element(options.tokens.begin(), options.tokens.end()) < 1)
    bad_input("--tokens: given \"{}\", expected 1 or more", o.tokens);
  options.parts = parts_of(o.experts, registry);
  const Ranks ranks(o.ranks);
  if (o.ranks.comm != "self") {
    options.ranks = &ranks;
    if (options.stages || !options.record.empty()) bad_input("--stages, --record: given with --comm {}", o.ranks.comm);
    if (!o.prepare.empty()) options.prepare = part_name("--prepare", registry.prepare_finalizes, o.prepare);
  } else if (!o.prepare.empty()) {
    bad_input("--prepare: given \"{}\" without --comm sim or mpi", o.prepare);
  }
  const BenchReport report = run_bench(selected, options, registry, machine);
  if (report.rows.empty()) throw Error(ErrorKind::unsupported, report.refusals);
  if (!ranks.is_root()) return kOk;
  const bool wrong = std::any_of(report.notes.begin(), report.notes.end(),
                                 [](const std::string& note) { return note.starts_with("WRONG"); });
  if (o.common.json) {
    Json rows = Json::array();
    for (const BenchRow& row : report.rows) rows.push_back(row_json(row, options.stages));
    print_json({{"label", selected.label},
                {"moe", to_json(selected.problem.moe)},
                {"quant", to_json(selected.problem.quant)},
                {"device", to_json(machine.facts)},
                {"routing", options.routing},
                {"points", rows},
                {"notes", report.notes}});
  } else {
    print_header(o, selected, machine);
    print_report(report, options.stages);
  }
  return wrong ? kWrong : kOk;
}

}  // namespace

Command add_bench(CLI::App& app) {
  auto o = std::make_shared<BenchCommand>();
  OptionSet set(app, "bench", "Time the whole layer, router logits to output",
                "Examples: conclave bench data/tiny-moe --tokens 1,64\n"
                "          conclave bench --shape mixtral --num-experts 2 --dtype bf16 --experts all --stages\n"
                "          mpirun -n 2 conclave bench data/tiny-moe --comm mpi --microbatches 2 --trace two.json");
  add_problem_options(set, o->problem);
  set.add("--tokens", o->tokens, "Token counts, separated by commas")
      .add("--experts", o->experts, "This experts part, or all; default: what plan chooses")
      .add("--routing", o->bench.routing, "uniform, zipf:A or trace:FILE (with <block>.topk_ids)")
      .flag("--stages", o->bench.stages, "Also time router, prepare+experts+finalize, and shared expert alone")
      .add_in_range("--min-time", o->bench.timing.min_seconds, 0.0, 3600.0, "Seconds to spend on one point")
      .add_in_range("--max-time", o->bench.timing.max_seconds, 0.0, 36000.0,
                    "A part whose one run takes longer gets no more tokens")
      .add_in_range("--microbatches", o->bench.micro_batches, 1, 64, "Run the batch in this many interleaved parts")
      .add("--trace", o->bench.trace, "Write a timeline of one run of the first point, for chrome://tracing")
      .add("--prepare", o->prepare, "Over ranks: this prepare/finalize; default: all_to_all")
      .add("--record", o->bench.record, "Write the problem with the fewest tokens as a case file");
  add_rank_options(set, o->ranks);
  add_common_options(set, o->common);
  return {set.app(), [o] { return run_bench(*o); }};
}

}  // namespace conclave::cli
