// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Opens the CPU, and a GPU where one is asked for.
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

/// In the form that is kept: a GPU has no reading for f32, which is not what its tensor cores are for.
CpuCeilings of_gpu(int index) {
  const CudaCeilings measured = measure_cuda_ceilings(index);
  return {.read_bytes_per_second = measured.bytes_per_second,
          .f32_flops = 0,
          .bf16_flops = measured.bf16_flops,
          .f16_flops = measured.f16_flops};
}

}  // namespace

Device check_device(const std::string& text) {
  if (text == "cpu") return {};
  const bool indexed = text.starts_with("cuda:") && text.size() > 5 && text.size() < 10 &&
                       text.find_first_not_of("0123456789", 5) == std::string::npos;
  if (text != "cuda" && !indexed) bad_input("--device: given \"{}\", expected cpu, cuda or cuda:N", text);
  const int index = indexed ? std::stoi(text.substr(5)) : 0;
  try {
    return cuda_facts(index).device;
  } catch (const Error& error) {
    bad_input("--device {}: {}", text, error.what());
  }
}

Machine open_machine(const CommonOptions& options, Ceilings ceilings) {
  const Device device = check_device(options.device);
  Machine machine;
  if (device.type == DeviceType::cuda) {
    machine.facts = cuda_facts(device.index);
    machine.gpu.emplace(device.index);
  }
  machine.executor = make_executor(options.threads);
  machine.host_facts = cpu_facts(machine.executor->num_threads());
  machine.host_stream = Stream::cpu(*machine.executor);
  if (!machine.gpu) machine.facts = machine.host_facts;
  machine.stream = machine.gpu ? machine.gpu->stream() : machine.host_stream;
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
  const CpuCeilings fresh = machine.gpu ? of_gpu(device.index) : measure_cpu_ceilings(*machine.executor);
  apply(fresh, machine.facts);
  machine.measured_now = true;
  machine.cache_note = store_ceilings(machine.cache_path, key, fresh);
  return machine;
}

}  // namespace conclave::cli
