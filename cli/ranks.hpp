// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: --ranks and --comm. Out: ranks to run on, and a layer run over them: tokens split, outputs joined.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "conclave/comm.hpp"
#include "layer_run.hpp"

namespace conclave::cli {

class OptionSet;

struct RankOptions {
  std::int64_t ranks = 0;  ///< 0: as many as the communicator has.
  std::string comm = "self";
};
/// --ranks, --comm.
void add_rank_options(OptionSet& options, RankOptions& ranks);

/// One rank, several in this process, or this process's rank among those of mpirun.
class Ranks {
 public:
  /// Throws Error if there is no such communicator in this build, or it has another number of ranks.
  explicit Ranks(const RankOptions& options);
  ~Ranks();

  int size() const noexcept { return size_; }
  /// True in the process that prints.
  bool is_root() const noexcept;
  bool is_mpi() const noexcept;
  /// body on every rank of this process. What a rank of an MPI run throws ends all of them: it is printed first.
  void run(Stream stream, FunctionRef<void(Communicator& communicator, Stream stream)> body) const;

 private:
  int size_ = 1;
  std::unique_ptr<Communicator> communicator_;  ///< Null: ranks in this process.
};

/// How `prepare` is used over ranks: by its own exchange, each rank with tokens of its own; without one, experts spread
/// over ranks that all see every token.
ParallelConfig parallel_for(const std::string& prepare, std::int64_t ranks, std::int64_t rank, Placement placement);

/// Rows of each rank, [ranks + 1]: uneven on purpose, and none for one rank where there are three or more.
std::vector<std::int64_t> split_rows(std::int64_t num_rows, std::int64_t ranks);

/// The largest share of split_rows().
std::int64_t largest_share(std::int64_t num_rows, std::int64_t ranks);

/// As run_layer(), over ranks: `weights` and `input` are the whole; so is the result. `problem` without ranks; `pins`
/// must name a prepare/finalize.
LayerResult run_on_ranks(const Ranks& ranks, const Problem& problem, const Registry& registry, const PlanOptions& pins,
                         const LayerWeights& weights, const LayerInput& input, Placement placement, Stream stream);

/// The problem as rank `rank` plans it, for `num_rows` rows in all.
Problem problem_of_rank(const Problem& problem, const std::string& prepare, std::int64_t num_rows, std::int64_t ranks,
                        std::int64_t rank, Placement placement);

}  // namespace conclave::cli
