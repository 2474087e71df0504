// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: an Assignment and the buffers of one call. Out: the phases of the grouped product, each one parallel region: pack
// the rows, first product and activation, packed where that takes whole rows, second product, combine. How the work of
// a phase is cut never changes a bit of its results.
#pragma once

#include <cstdint>

#include "conclave/experts.hpp"
#include "experts/cpu/assignment.hpp"
#include "experts/cpu/engine.hpp"
#include "experts/cpu/packed_weights.hpp"

namespace conclave::experts::grouped {

struct Call {
  const Engine& engine;
  const MoeConfig& moe;
  const ActivationFn& activation;
  const GroupedWeights& weights;
  ConstTensorView hidden_states;
  std::int64_t top_k;
  void* inputs;         ///< Packed hidden states. Dead when `rows` comes into being: the two share workspace13.
  void* activations;    ///< Packed result of the activation.
  float* input_scales;  ///< Of the rows of inputs. Integers only, like the next.
  float* activation_scales;
  float* activation_rows;   ///< Result of the activation, [rows][padded I], where the engine packs whole rows.
  float* rows;              ///< Second product, [M * top_k][row_stride].
  std::int64_t row_stride;  ///< A multiple of the vector length.
  TensorView output;
  Executor& executor;
};

/// How one product is cut into units.
struct ProductGrid {
  bool decode;         ///< Every expert has one row tile: a unit is one panel.
  std::int64_t group;  ///< Panels of a unit.
};
ProductGrid grid_of(const Engine& engine, Assignment& assignment, std::int64_t num_panels, int num_threads);

void pack_rows(const Call& call, Assignment& assignment);
void first_product(const Call& call, Assignment& assignment);
/// Where the engine packs whole rows: nothing happens elsewhere.
void pack_activations(const Call& call, Assignment& assignment);
void second_product(const Call& call, Assignment& assignment);
void combine(const Call& call, const Assignment& assignment);

}  // namespace conclave::experts::grouped
