// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The rules of choose_mma.hpp.
#include "experts/cuda/choose_mma.hpp"

namespace conclave::experts::cuda {
namespace {

/// A tile holds nearly every expert's rows, for the reason that choose.cpp gives: up to 9 rows on average few experts
/// have more than 16, up to 48 few have more than 64.
constexpr double kDecodeRows = 9;
constexpr double kMiddleRows = 48;

constexpr GemmTile kDecode{.tokens = 16, .weight_rows = 64};
constexpr GemmTile kMiddle{.tokens = 64, .weight_rows = 128};
constexpr GemmTile kPrefill{.tokens = 128, .weight_rows = 128};

}  // namespace

GemmChoice choose_mma(const GemmProblem& problem, std::int64_t num_tokens) {
  const double rows = rows_per_active_expert(problem, num_tokens);
  GemmChoice choice;
  // Rare activations are compiled for the smaller tiles only.
  if (rows <= kDecodeRows)
    choice.tile = kDecode;
  else if (rows <= kMiddleRows || !problem.common_activation)
    choice.tile = kMiddle;
  else
    choice.tile = kPrefill;
  choice.second = choice.tile;
  return choice;
}

}  // namespace conclave::experts::cuda
