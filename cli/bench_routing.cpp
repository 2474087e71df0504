// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Logits by the Gumbel trick: the k largest of log p + Gumbel noise are k distinct experts drawn in proportion to p.
#include "bench_routing.hpp"

#include <algorithm>
#include <cmath>
#include <random>

#include "block_io.hpp"
#include "conclave/safetensors.hpp"
#include "convert.hpp"
#include "error.hpp"
#include "parse.hpp"

namespace conclave::cli {
namespace {

std::vector<std::int32_t> read_trace(const std::string& path, const std::string& block, const MoeConfig& config) {
  const SafetensorsFile file(path);
  const NamedTensor* found = nullptr;
  for (const NamedTensor& tensor : file.tensors())
    if (found == nullptr && (block.empty() ? tensor.name.ends_with(".topk_ids") : tensor.name == block + ".topk_ids"))
      found = &tensor;
  if (found == nullptr) bad_input("{}: no tensor \"{}.topk_ids\"", path, block.empty() ? "<block>" : block);
  const ConstTensorView& view = found->view;
  if (view.rank != 2 || view.size(0) == 0 || view.size(1) != config.top_k)
    bad_input("{}: tensor \"{}\": given {}, expected [rows, {}]", path, found->name, to_string(view), config.top_k);
  const Tensor ids = convert_ids(view, found->name.c_str());
  std::vector<std::int32_t> values(ids.as<std::int32_t>(), ids.as<std::int32_t>() + ids.view().numel());
  for (const std::int32_t id : values)
    if (id < 0 || id >= config.num_experts)
      bad_input("{}: tensor \"{}\": id {}, expected 0 to {}", path, found->name, id, config.num_experts - 1);
  return values;
}

using Random = std::mt19937_64;

/// In (0, 1), the same on every standard library.
double uniform(Random& random) {
  return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53;
}

double gumbel(Random& random) {
  return -std::log(-std::log(uniform(random)));
}

/// Expert 0 is the busiest.
void draw_zipf(double exponent, std::span<float> row, Random& random) {
  for (std::size_t e = 0; e < row.size(); ++e)
    row[e] = static_cast<float>(gumbel(random) - exponent * std::log(static_cast<double>(e + 1)));
}

/// The traced experts get the largest logits, in their order; the others lie well below under every scoring function.
void draw_trace(std::span<const std::int32_t> ids, std::span<float> row, Random& random) {
  for (float& x : row) x = static_cast<float>(uniform(random)) - 4.0F;
  for (std::size_t slot = 0; slot < ids.size(); ++slot)
    row[static_cast<std::size_t>(ids[slot])] = 2.0F - static_cast<float>(slot) / static_cast<float>(ids.size());
}

void fill_draw(const RoutingSpec& spec, const MoeConfig& c, std::int64_t num_tokens, float* logits, Random& random) {
  const auto width = static_cast<std::size_t>(c.num_experts);
  const auto k = static_cast<std::size_t>(c.top_k);
  const std::size_t rows = spec.ids.size() / k;
  // Consecutive tokens of the trace, from another place each time: neighbours choose alike, as they do when serving.
  std::size_t at = rows > 0 ? random() % rows : 0;
  for (std::int64_t m = 0; m < num_tokens; ++m) {
    const std::span<float> row(logits + m * c.num_experts, width);
    if (spec.kind == RoutingSpec::Kind::trace) {
      draw_trace({spec.ids.data() + at * k, k}, row, random);
      at = (at + 1) % rows;
    } else {
      draw_zipf(spec.kind == RoutingSpec::Kind::zipf ? spec.exponent : 0, row, random);
    }
  }
}

Load load_of(const MoeConfig& c, const ConstTensorView& ids) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(c.num_weight_experts()), 0);
  // Zero experts have the highest ids; fused shared slots come after the routed ones and have weights.
  for (std::int64_t i = 0; i < ids.numel(); ++i) {
    const std::int32_t id = ids.as<std::int32_t>()[i];
    if (id >= 0 && id < c.num_weight_experts()) ++rows[static_cast<std::size_t>(id)];
  }
  Load load;
  for (const std::int64_t count : rows) {
    load.active_experts += count > 0 ? 1 : 0;
    load.rows += count;
    load.busiest = std::max(load.busiest, count);
  }
  return load;
}

/// Enough that an expert's weights are out of the caches when its draw comes again, within 16 MiB of logits.
std::int64_t number_of_draws(std::int64_t num_tokens, std::int64_t num_experts) {
  const std::int64_t bytes = std::max<std::int64_t>(1, num_tokens * num_experts * 4);
  return std::clamp<std::int64_t>((16 << 20) / bytes, 8, 256);
}

}  // namespace

RoutingSpec parse_routing(const std::string& text, const MoeConfig& config, const std::string& block) {
  RoutingSpec spec;
  spec.text = text;
  if (text == "uniform") return spec;
  if (text.starts_with("zipf:")) {
    spec.kind = RoutingSpec::Kind::zipf;
    spec.exponent = parse_number("--routing zipf", text.substr(5));
    if (!(spec.exponent >= 0 && spec.exponent <= 100))
      bad_input("--routing: given \"{}\", expected an exponent from 0 to 100", text);
    return spec;
  }
  if (text.starts_with("trace:")) {
    spec.kind = RoutingSpec::Kind::trace;
    spec.ids = read_trace(text.substr(6), block, config);
    return spec;
  }
  bad_input("--routing: given \"{}\", expected uniform, zipf:A or trace:FILE", text);
}

Draws make_draws(const RoutingSpec& spec, const Problem& problem, const Router& router,
                 const std::optional<ConstTensorView>& bias, std::int64_t num_tokens, Stream stream) {
  const MoeConfig& c = problem.moe;
  const std::int64_t count = number_of_draws(num_tokens, c.num_experts);
  Draws draws;
  draws.logits = Tensor(DType::f32, {count, num_tokens, c.num_experts});
  draws.ids = Tensor(DType::i32, {count, num_tokens, c.num_slots()});
  draws.weights = Tensor(DType::f32, {count, num_tokens, c.num_slots()});
  Random random(c.routing.seed + static_cast<std::uint64_t>(num_tokens));
  Arena measure = Arena::measuring();
  router.plan_scratch(measure, num_tokens);
  Workspace workspace;
  for (std::int64_t d = 0; d < count; ++d) {
    fill_draw(spec, c, num_tokens, draws.logits.view().at(d).as<float>(), random);
    RouterInput input;
    input.logits = draws.logits.view().at(d);
    input.e_score_correction_bias = bias;
    Arena arena(workspace.region({}, measure.peak()), {});
    router.route(input, {draws.ids.view().at(d), draws.weights.view().at(d)}, arena, stream);
    draws.loads.push_back(load_of(c, draws.ids.view().at(d)));
  }
  return draws;
}

}  // namespace conclave::cli
