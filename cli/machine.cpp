// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Opens the CPU; other devices are refused with the reason.
#include "machine.hpp"

#include "ceiling_cache.hpp"
#include "conclave/ceilings.hpp"
#include "error.hpp"
#include "progress.hpp"

namespace conclave::cli {
namespace {

void apply(const CpuCeilings& ceilings, DeviceFacts& facts) {
  facts.bytes_per_second = ceilings.read_bytes_per_second;
  facts.f32_flops = ceilings.f32_flops;
  facts.bf16_flops = ceilings.bf16_flops;
  facts.f16_flops = ceilings.f16_flops;
}

}  // namespace

void check_device(const std::string& device) {
  if (device == "cpu") return;
  const bool indexed = device.starts_with("cuda:") && device.size() > 5 &&
                       device.find_first_not_of("0123456789", 5) == std::string::npos;
  if (device == "cuda" || indexed) bad_input("--device {}: this build has no CUDA back end; use --device cpu", device);
  bad_input("--device: given \"{}\", expected cpu, cuda or cuda:N", device);
}

Machine open_machine(const CommonOptions& options, Ceilings ceilings) {
  check_device(options.device);
  Machine machine;
  machine.executor = make_executor(options.threads);
  machine.facts = cpu_facts(machine.executor->num_threads());
  machine.stream = Stream::cpu(*machine.executor);
  machine.cache_path = ceiling_cache_path();
  const std::string key = ceiling_key(machine.facts);
  if (ceilings != Ceilings::remeasure) {
    if (const auto kept = load_ceilings(machine.cache_path, key)) {
      apply(*kept, machine.facts);
      return machine;
    }
  }
  if (ceilings == Ceilings::cached) return machine;
  Progress progress;
  progress.show("measuring memory bandwidth and arithmetic peaks");
  const CpuCeilings fresh = measure_cpu_ceilings(*machine.executor);
  apply(fresh, machine.facts);
  machine.measured_now = true;
  machine.cache_note = store_ceilings(machine.cache_path, key, fresh);
  return machine;
}

}  // namespace conclave::cli
