// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// conclave info: version, the machine and what was measured on it, and every registered part.
#include <memory>

#include "command.hpp"
#include "conclave/device.hpp"
#include "conclave/registry.hpp"
#include "conclave/version.hpp"
#include "error.hpp"
#include "json_out.hpp"
#include "machine.hpp"
#include "option_set.hpp"

namespace conclave::cli {
namespace {

struct InfoCommand {
  CommonOptions common;
  bool remeasure = false;
};

template <class Part>
Json names_of(const PartList<Part>& list) {
  Json names = Json::array();
  for (const auto& entry : list.entries()) names.push_back(entry.name);
  return names;
}

template <class Part>
std::string lines_of(const char* stage, const PartList<Part>& list) {
  std::string text = fmt::format("{} parts, in the order in which they are tried:\n", stage);
  for (const auto& entry : list.entries()) text += fmt::format("  {}\n", entry.name);
  return text;
}

std::string features_text(const CpuFeatures& f) {
  std::string text;
  const auto add = [&](bool has, const char* name) {
    if (has) text += (text.empty() ? "" : ", ") + std::string(name);
  };
  add(f.avx2, "avx2+fma+f16c");
  add(f.avx512, "avx512 (f, bw, vl, dq)");
  add(f.avx512_bf16, f.slow_avx512_bf16 ? "avx512_bf16 (half rate)" : "avx512_bf16");
  add(f.avx512_vnni, "avx512_vnni");
  add(f.amx_bf16, "amx_bf16");
  add(f.amx_int8, "amx_int8");
  return text.empty() ? "none that a part uses" : text;
}

std::string gpus_text() {
  if (!has_cuda_back_end()) return "device cuda: this build has no CUDA back end\n";
  std::string text;
  for (const DeviceFacts& f : cuda_devices())
    text += fmt::format("device {}: {}, {} multiprocessors, compute capability {}.{}, L2 {:.1f} MiB\n",
                        to_string(f.device), f.name, f.num_threads, f.compute_capability / 10,
                        f.compute_capability % 10, static_cast<double>(f.l2_bytes) / (1 << 20));
  return text.empty() ? "device cuda: no GPU, or no driver for one\n" : text;
}

std::string machine_text(const Machine& m) {
  const DeviceFacts& f = m.facts;
  std::string text;
  if (!m.gpu) {
    text += fmt::format("device cpu: {}\n", f.name);
    text += fmt::format("  threads     {}\n", f.num_threads);
    text += fmt::format("  features    {}\n", features_text(f.cpu));
    text += fmt::format("  L2 a core   {} KiB\n", f.l2_bytes / 1024);
    text += fmt::format("  memory      {:.1f} GB/s read\n", f.bytes_per_second * 1e-9);
    text += fmt::format("  arithmetic  {:.1f} GFLOP/s f32, {:.1f} bf16, {:.1f} f16\n", f.f32_flops * 1e-9,
                        f.bf16_flops * 1e-9, f.f16_flops * 1e-9);
  } else {
    text += fmt::format("device {}: {}\n", to_string(f.device), f.name);
    text += fmt::format("  memory      {:.1f} GB/s copied, reads and writes together\n", f.bytes_per_second * 1e-9);
    text += fmt::format("  arithmetic  {:.1f} TFLOP/s bf16, {:.1f} f16 (matrix products by cuBLASLt)\n",
                        f.bf16_flops * 1e-12, f.f16_flops * 1e-12);
  }
  if (!m.cache_note.empty())
    text += fmt::format("  measured    now; not kept ({})\n", m.cache_note);
  else
    text += fmt::format("  measured    {}, kept in {} (delete it or use --remeasure to measure again)\n",
                        m.measured_now ? "now" : "earlier", m.cache_path);
  return text + gpus_text();
}

int run_info(const InfoCommand& options) {
  const Machine machine = open_machine(options.common, options.remeasure ? Ceilings::remeasure : Ceilings::measured);
  const Registry registry = builtin_registry();
  if (options.common.json) {
    Json cpu = to_json(machine.facts);
    cpu["measured_now"] = machine.measured_now;
    print_json({{"version", version()},
                {"devices", Json::array({cpu})},
                {"cache", {{"path", machine.cache_path}, {"note", machine.cache_note}}},
                {"parts",
                 {{"router", names_of(registry.routers)},
                  {"dispatch", names_of(registry.prepare_finalizes)},
                  {"experts", names_of(registry.experts)}}}});
    return kOk;
  }
  print_text(fmt::format("conclave {}\n{}", version(), machine_text(machine)));
  print_text(lines_of("router", registry.routers) + lines_of("dispatch", registry.prepare_finalizes) +
             lines_of("experts", registry.experts));
  return kOk;
}

}  // namespace

Command add_info(CLI::App& app) {
  auto o = std::make_shared<InfoCommand>();
  OptionSet set(app, "info", "Version, devices and their measured facts, registered parts",
                "Example: conclave info --json");
  add_common_options(set, o->common);
  set.flag("--remeasure", o->remeasure, "Measure memory and arithmetic again");
  return {set.app(), [o] { return run_info(*o); }};
}

}  // namespace conclave::cli
