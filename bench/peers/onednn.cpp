// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Times OneDnnMoe on E,k,H,I for several token counts with fresh uniform routing for each call; one JSON line a point.
#include <omp.h>

#include "onednn_mlp.hpp"

int main(int argc, char** argv) {
  CLI::App app{"oneDNN as an MoE layer: one matmul per expert and matrix"};
  peer::Options options;
  peer::add_options(app, options, {"f32", "bf16"});
  CLI11_PARSE(app, argc, argv);
  if (options.threads > 0) omp_set_num_threads(options.threads);
  try {
    peer::OneDnnMoe moe(options.sizes(), options.dtype == "bf16", 1);
    peer::time_points("onednn", moe, options);
  } catch (const dnnl::error& e) {
    std::cerr << "peer_onednn: " << options.dtype << " on this CPU: " << e.what() << "\n";
    return 1;
  }
  return 0;
}
