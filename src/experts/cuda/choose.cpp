// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The rules of choose.hpp, measured on an H200 (bench/results/h200.md).
#include "experts/cuda/choose.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace conclave::experts::cuda {
namespace {

/// A token tile as wide as nearly every expert's rows: a second tile of an expert fetches its weights again, from L2 at
/// best. Rows spread like a Poisson variable, so the bounds leave two to three deviations of room.
int tokens_for(double rows) {
  if (rows <= 4) return 8;
  if (rows <= 9) return 16;
  if (rows <= 22) return 32;
  if (rows <= 48) return 64;
  return 128;
}

/// Up to here an expert's time is that of its weights, and half the weight rows make the finer schedule.
constexpr double kStreamingRows = 96;
/// K from which the epilogue hides behind the next item without help, so that sharing weights between two blocks pays.
constexpr std::int64_t kDeepK = 4096;
constexpr double kPairRows = 512;
/// Rows of an expert from which tiles with tokens as rows are full nearly always: 4 to 6 % faster for OLMoE with 2048,
/// 1 to 4 % for Qwen3-30B with 1024, and 8 % and more slower for both at a quarter of that.
constexpr double kTokenRows = 1024;

std::int64_t w13_rows_of(const GemmProblem& p) {
  return p.gated ? 2 * p.intermediate_size : p.intermediate_size;
}

/// One multiprocessor streams at most some 50 GB/s through 128-row tiles, so two thirds of an H200's must have one to
/// reach its memory's rate. Where there are fewer tiles, they are cut in half.
int streaming_rows(double experts, std::int64_t weight_rows, int num_multiprocessors) {
  const double tiles = experts * std::ceil(static_cast<double>(weight_rows) / 128);
  return tiles * 3 < 2 * num_multiprocessors ? 64 : 128;
}

}  // namespace

double active_experts(const GemmProblem& p, std::int64_t num_tokens) {
  const double pick = std::min(1.0, static_cast<double>(p.top_k) / static_cast<double>(p.num_experts));
  return static_cast<double>(p.num_experts) * (1 - std::pow(1 - pick, static_cast<double>(num_tokens)));
}

double rows_per_active_expert(const GemmProblem& p, std::int64_t num_tokens) {
  if (num_tokens == 0) return 0;
  const double active = active_experts(p, num_tokens);
  return static_cast<double>(num_tokens) * static_cast<double>(p.top_k) / std::max(active, 1.0);
}

GemmChoice choose(const GemmProblem& p, std::int64_t num_tokens) {
  if (num_tokens == 0) return {};
  const double rows = rows_per_active_expert(p, num_tokens);
  GemmChoice choice;
  choice.tile.tokens = tokens_for(rows);
  // Rare activations are compiled for narrow tiles only.
  if (!p.common_activation) choice.tile.tokens = std::min(choice.tile.tokens, 64);
  if (p.common_activation && rows > kStreamingRows) choice.tile.weight_rows = 256;
  if (p.common_activation && rows >= kPairRows && p.hidden_size >= kDeepK) {
    choice.tile = {128, 192, 2};
    choice.sorts_rows = true;
  } else if (p.common_activation && rows >= kTokenRows) {
    choice.tile = {128, 256, 2, true};
  }
  choice.second = choice.tile;
  if (choice.tile.tokens == 8) {
    const double experts = static_cast<double>(num_tokens * p.top_k) / rows;
    choice.tile.weight_rows = streaming_rows(experts, w13_rows_of(p), p.num_multiprocessors);
    choice.second.weight_rows = streaming_rows(experts, p.hidden_size, p.num_multiprocessors);
  }
  return choice;
}

std::string to_string(const GemmChoice& choice) {
  const std::string rows = choice.second.weight_rows == choice.tile.weight_rows
                               ? std::to_string(choice.tile.weight_rows)
                               : fmt::format("{} and {}", choice.tile.weight_rows, choice.second.weight_rows);
  return fmt::format("{} tokens x {} weight rows{}{}, {}", choice.tile.tokens, rows,
                     choice.tile.token_rows ? ", tokens as rows" : "",
                     choice.tile.blocks == 2 ? ", pairs of blocks" : "", choice.sorts_rows ? "sorted" : "gathered");
}

}  // namespace conclave::experts::cuda
