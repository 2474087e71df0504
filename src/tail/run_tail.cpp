// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a MoeOutput, a residual and a norm's weight. Out: residual_out, normed rows, quantised rows. Two passes over f32
// rows in the arena, with the sum over ranks between them; on a GPU one kernel, of one rank.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.hpp"
#include "base/tensor_format.hpp"
#include "conclave/tail.hpp"
#include "cpu/float_convert.hpp"
#include "cpu/parallel_for.hpp"
#include "cuda/current_device.hpp"
#include "quant/elements.hpp"
#include "quant/family.hpp"
#include "tail/check.hpp"
#include "tail/cuda/tail.hpp"
#include "tail/open_sum.hpp"

namespace conclave {
namespace tail {
namespace {

/// f(h, n) over the columns of a row, kChunk at a time.
template <class F>
void for_columns(std::int64_t hidden_size, F&& f) {
  for (std::int64_t h = 0; h < hidden_size; h += kChunk) f(h, std::min(kChunk, hidden_size - h));
}

void sum_partials(const MoeOutput& moe, const TensorView& rows, Stream stream) {
  const std::int64_t hidden_size = rows.size(1);
  // Columns are cut too, so that all threads have work for a single token.
  const std::int64_t chunks = (hidden_size + kChunk - 1) / kChunk;
  cpu::parallel_for(*stream.executor, rows.size(0) * chunks, kProductsWorthThreads / (kChunk * picks_of(moe)),
                    [&](std::int64_t begin, std::int64_t end, int) {
                      for (std::int64_t item = begin; item < end; ++item) {
                        const std::int64_t h = item % chunks * kChunk;
                        open_sum(moe, item / chunks, h, std::min(kChunk, hidden_size - h),
                                 rows.at(item / chunks).as<float>() + h);
                      }
                    });
}

/// z += residual; z rounded to residual_out. Returns the mean of z^2, in double: one number for each row, and f32 loses
/// digits of it where H is in the thousands.
double add_residual(const TailInput& input, const TailOutput& output, std::int64_t m, float* z, std::int64_t width) {
  double squares = 0;
  float chunk[kChunk];
  for_columns(width, [&](std::int64_t h, std::int64_t n) {
    if (input.residual) {
      cpu::load_row_f32(input.residual->at(m).narrow(0, h, n), chunk);
      for (std::int64_t i = 0; i < n; ++i) z[h + i] += chunk[i];
    }
    for (std::int64_t i = h; i < h + n; ++i) squares += static_cast<double>(z[i]) * static_cast<double>(z[i]);
    if (output.residual_out) cpu::store_row_f32(z + h, output.residual_out->at(m).narrow(0, h, n));
  });
  return squares / static_cast<double>(width);
}

/// z *= (weight + bias) / root. Returns what a scale for the row follows from.
quant::GroupStats normalise(const TailConfig& config, const TailInput& input, double mean_square, float* z,
                            std::int64_t width) {
  const auto inverse = static_cast<float>(1.0 / std::sqrt(mean_square + config.epsilon));
  const auto bias = static_cast<float>(config.weight_bias);
  quant::GroupStats stats;
  float weight[kChunk];
  for_columns(width, [&](std::int64_t h, std::int64_t n) {
    cpu::load_row_f32(input.norm_weight.narrow(0, h, n), weight);
    for (std::int64_t i = 0; i < n; ++i) z[h + i] = z[h + i] * inverse * (weight[i] + bias);
    stats.add(z + h, n);
  });
  return stats;
}

/// As the codec does for fp8_token: a row that is not finite decodes to NaN and not to something plausible.
float scale_for(const TailConfig& config, const TailInput& input, const quant::GroupStats& stats) {
  if (config.quant == QuantKey::fp8_tensor) return *input.static_scale->as<float>();
  if (!stats.finite) return std::numeric_limits<float>::quiet_NaN();
  return std::max(stats.amax(), quant::kSmallestAmax) / quant::kMaxE4m3;
}

void quantise_row(const TailConfig& config, const TailInput& input, const TailOutput& output, std::int64_t m,
                  const float* normed, const quant::GroupStats& stats) {
  const float scale = scale_for(config, input, stats);
  auto* codes = output.quantised->at(m).as<std::uint8_t>();
  for (std::int64_t i = 0; i < output.quantised->size(1); ++i) codes[i] = quant::f32_to_e4m3(normed[i] / scale);
  if (config.quant == QuantKey::fp8_token) output.token_scales->as<float>()[m * output.token_scales->stride(0)] = scale;
}

void norm_row(const TailConfig& config, const TailInput& input, const TailOutput& output, std::int64_t m, float* z) {
  const std::int64_t width = input.norm_weight.size(0);
  const double mean_square = add_residual(input, output, m, z, width);
  if (!output.normed && !output.quantised) return;
  const quant::GroupStats stats = normalise(config, input, mean_square, z, width);
  if (output.normed) cpu::store_f32(z, output.normed->dtype, width, output.normed->at(m).data);
  if (output.quantised) quantise_row(config, input, output, m, z, stats);
}

TensorView take_rows(Arena& arena, std::int64_t num_tokens, std::int64_t hidden_size) {
  return arena.take(DType::f32, {num_tokens, hidden_size});
}

}  // namespace
}  // namespace tail

void plan_tail_scratch(Arena& arena, std::int64_t num_tokens, std::int64_t hidden_size) {
  tail::take_rows(arena, num_tokens, hidden_size);
}

void run_tail(const TailConfig& config, const TailInput& input, const TailOutput& output, Arena& arena, Stream stream) {
  const bool on_host = stream.device.type == DeviceType::cpu;
  require(!on_host || stream.executor != nullptr, "stream: no executor, expected Stream::cpu(executor)");
  require(input.norm_weight.rank == 1 && input.norm_weight.size(0) > 0, "norm_weight: given {}, expected [hidden_size]",
          input.norm_weight);
  const std::int64_t hidden_size = input.norm_weight.size(0);
  const std::int64_t num_tokens = tail::check_open(input.moe, hidden_size);
  tail::check_tail(config, input, output, num_tokens);
  tail::check_places(input, output, stream);
  if (num_tokens == 0) return;

  const TensorView rows = tail::take_rows(arena, num_tokens, hidden_size);
  if (!on_host) {
    tail::check_place("arena", rows, stream);
    if (input.all_reduce != nullptr)
      fail(ErrorKind::unsupported, "all_reduce: given, and the tail on {} knows one rank", stream.device);
    const cuda::CurrentDevice here(stream.device);
    return tail::run_on_cuda(config, input, output, rows, stream);
  }
  tail::sum_partials(input.moe, rows, stream);
  if (input.all_reduce != nullptr) (*input.all_reduce)(rows);
  cpu::parallel_for(*stream.executor, num_tokens, tail::kProductsWorthThreads / (4 * hidden_size),
                    [&](std::int64_t begin, std::int64_t end, int) {
                      for (std::int64_t m = begin; m < end; ++m)
                        tail::norm_row(config, input, output, m, rows.at(m).as<float>());
                    });
}

}  // namespace conclave
