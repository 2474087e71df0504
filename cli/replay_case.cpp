// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Walks the combinations of parts: experts x prepare/finalize, then the routers that plan would not choose.
#include "replay_case.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "conclave/safetensors.hpp"
#include "convert.hpp"
#include "error.hpp"

namespace conclave::cli {
namespace {

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

/// What the file itself says it should be refused with, read without read_case(), which may be what refuses it.
std::string expect_error_of(const std::string& path) {
  try {
    const SafetensorsFile file(path);
    const auto problem = file.metadata().find("problem");
    if (problem == file.metadata().end()) return {};
    const auto json = nlohmann::json::parse(problem->second, nullptr, false);
    return json.is_object() ? json.value("expect_error", std::string()) : std::string();
  } catch (const std::exception&) {
    return {};
  }
}

/// The oracle, always on the CPU: the last modular standard-format part that finalizes (lists end with the reference).
std::string reference_name(const Registry& registry) {
  std::string name;
  for (const auto& entry : registry.experts.entries())
    if (!entry.monolithic && !entry.defers_finalize && entry.format == ActivationFormat::standard) name = entry.name;
  return name;
}

class Replay {
 public:
  Replay(Case value, const ReplayOptions& options, const Registry& registry, const Machine& machine)
      : case_(std::move(value)), options_(options), registry_(registry), machine_(machine) {
    if (options.checked) case_.moe.checked = true;
    const std::int64_t num_tokens = case_.hidden_states.rank > 0 ? case_.hidden_states.size(0) : 0;
    case_.moe.max_num_tokens = num_tokens;
    input_.hidden_states = case_.hidden_states;
    input_.router_logits = case_.router_logits;
    if (!case_.topk_ids || !case_.topk_weights) return;
    ids_ = convert_ids(*case_.topk_ids, "topk_ids");
    weights_ = convert(*case_.topk_weights, DType::f32, "topk_weights", *machine.executor);
    input_.routing = Routing{ids_, weights_};
    input_.router_logits.reset();
  }

  std::vector<ReplayRow> run() {
    const std::string oracle = reference_name(registry_);
    if (case_.expect_error.empty()) reference_ = reference_output(oracle);
    for (const auto& entry : registry_.experts.entries())
      if (options_.experts == "all" || options_.experts == entry.name) run_experts(entry.name);
    if (input_.router_logits && !rows_.empty()) run_other_routers();
    return std::move(rows_);
  }

 private:
  Problem problem() const { return {case_.moe, {}, case_.quant, machine_.facts}; }
  Problem problem_on_host() const { return {case_.moe, {}, case_.quant, machine_.host_facts}; }

  /// A case with an expert map is one rank's share already. An error that a case expects may strike one rank only, and
  /// in an MPI run that rank would take the others with it.
  bool on_ranks() const {
    return options_.ranks != nullptr && !case_.weights.expert_map &&
           !(options_.ranks->is_mpi() && !case_.expect_error.empty());
  }
  /// The problem that parts are asked about: of rank 0, where there are several.
  Problem problem_for(const std::string& prepare) const {
    if (!on_ranks()) return problem();
    return problem_of_rank(problem(), prepare, case_.hidden_states.rank > 0 ? case_.hidden_states.size(0) : 0,
                           options_.ranks->size(), 0, options_.placement);
  }

  std::optional<Tensor> reference_output(const std::string& oracle) const {
    try {
      const Variant variant = plan_variant(problem_on_host(), case_.moe.dtype, registry_,
                                           {.router = {}, .prepare_finalize = {}, .experts = oracle});
      if (!variant.plan) return std::nullopt;
      return run_variant(variant, machine_.host_stream).output;
    } catch (const Error&) {
      return std::nullopt;  // The row of the same part says why.
    }
  }

  LayerResult run_variant(const Variant& variant, Stream stream) const {
    const LayerWeights weights = weights_for(variant, case_.weights, *machine_.executor);
    return run_layer(*variant.plan, registry_, weights, input_, stream);
  }

  /// A case that runs on one rank although there are several has no use for an exchange that was asked for.
  bool wants_prepare(const std::string& name) const {
    return options_.prepare == "all" || options_.prepare == name || (options_.ranks != nullptr && !on_ranks());
  }

  LayerResult run_variant_on_ranks(const Variant& variant, const PlanOptions& pins) const {
    const LayerWeights weights = weights_for(variant, case_.weights, *machine_.executor);
    return run_on_ranks(*options_.ranks, variant.plan->problem, registry_, pins, weights, input_, options_.placement,
                        machine_.stream);
  }

  void run_experts(const std::string& experts) {
    const std::size_t before = rows_.size();
    std::string refusal;
    for (const auto& prepare : registry_.prepare_finalizes.entries())
      if (wants_prepare(prepare.name)) run_parts("", prepare.name, experts, refusal);
    if (rows_.size() > before) return;
    // No prepare/finalize takes it: one row with the reason, which is the experts' own where they refuse.
    std::string reason = refusal;
    PlanOptions alone;
    alone.experts = experts;
    const Variant variant = plan_variant(problem_for(options_.prepare), case_.moe.dtype, registry_, alone);
    if (!variant.plan) reason = variant.refusal;
    add_refusal("", "", experts, reason);
  }

  /// Adds a row unless these parts do not fit each other or the problem; then `refusal` says why.
  void run_parts(const std::string& router, const std::string& prepare, const std::string& experts,
                 std::string& refusal) {
    PlanOptions pins;
    pins.router = router;
    pins.prepare_finalize = prepare;
    pins.experts = experts;
    ReplayRow row{router, prepare, experts, Outcome::passed, {}, {}, {}};
    try {
      const Variant variant = plan_variant(problem_for(prepare), case_.moe.dtype, registry_, pins);
      if (!variant.plan) {
        refusal = variant.refusal;
        return;
      }
      row.router = input_.router_logits ? variant.plan->router.chosen : "";
      if (input_.routing && is_monolithic(experts)) {
        refusal = "monolithic: it routes by itself, and the case gives ids";
        return;
      }
      const LayerResult result =
          on_ranks() ? run_variant_on_ranks(variant, pins) : run_variant(variant, machine_.stream);
      if (!case_.expect_error.empty()) {
        row.outcome = Outcome::failed;
        row.message = fmt::format("it ran; expected an error with \"{}\"", case_.expect_error);
      } else {
        judge(case_, result, reference_, *machine_.executor, row);
      }
    } catch (const Error& error) {
      set_error(row, error.what());
    }
    rows_.push_back(row);
  }

  void run_other_routers() {
    const ReplayRow first = rows_.front();
    if (first.outcome == Outcome::refused) return;
    for (const auto& router : registry_.routers.entries()) {
      std::string ignored;
      if (router.name != first.router) run_parts(router.name, first.prepare, first.experts, ignored);
    }
  }

  bool is_monolithic(const std::string& experts) const { return registry_.experts.find(experts)->monolithic; }

  void set_error(ReplayRow& row, const std::string& message) const {
    const bool wanted = !case_.expect_error.empty() && message.find(case_.expect_error) != std::string::npos;
    row.outcome = wanted ? Outcome::passed : Outcome::failed;
    row.message = first_line(message);
  }

  void add_refusal(const std::string& router, const std::string& prepare, const std::string& experts,
                   const std::string& reason) {
    ReplayRow row{router, prepare, experts, Outcome::refused, {}, {}, reason};
    if (!case_.expect_error.empty() && reason.find(case_.expect_error) != std::string::npos)
      row.outcome = Outcome::passed;
    rows_.push_back(row);
  }

  Case case_;
  const ReplayOptions& options_;
  const Registry& registry_;
  const Machine& machine_;
  Tensor ids_, weights_;
  LayerInput input_;
  std::optional<Tensor> reference_;
  std::vector<ReplayRow> rows_;
};

}  // namespace

bool ReplayReport::applies() const {
  return std::any_of(rows.begin(), rows.end(), [](const ReplayRow& row) { return row.outcome != Outcome::refused; });
}

bool ReplayReport::ok() const {
  const auto has = [&](Outcome outcome) {
    return std::any_of(rows.begin(), rows.end(), [&](const ReplayRow& row) { return row.outcome == outcome; });
  };
  return has(Outcome::passed) && !has(Outcome::failed);
}

ReplayReport replay_case(const std::string& path, const ReplayOptions& options, const Registry& registry,
                         const Machine& machine) {
  ReplayReport report{path, {}};
  std::string expect_error;
  try {
    expect_error = expect_error_of(path);
    report.rows = Replay(read_case(path), options, registry, machine).run();
  } catch (const Error& error) {
    // The file, or the whole problem, is refused: no part was asked.
    if (expect_error.empty() && error.kind() != ErrorKind::unsupported) throw;
    const std::string message = error.what();
    const bool wanted = !expect_error.empty() && message.find(expect_error) != std::string::npos;
    report.rows.push_back({"", "", "", wanted ? Outcome::passed : Outcome::failed, {}, {}, first_line(message)});
  }
  return report;
}

}  // namespace conclave::cli
