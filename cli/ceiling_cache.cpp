// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// {"entries": {"<cpu>|<threads>|<version>": {"read_bytes_per_second": ..., ...}}}
#include "ceiling_cache.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "conclave/version.hpp"

namespace conclave::cli {
namespace {

nlohmann::json read_file(const std::string& path) {
  try {
    std::ifstream in(path);
    nlohmann::json value = nlohmann::json::parse(in, nullptr, false);
    if (value.is_object()) return value;
  } catch (const std::exception&) {
    // A folder in its place, a failing disk: no cache.
  }
  return nlohmann::json::object();
}

/// Also refuses what no machine does: zero, negative and absurd rates of a damaged file.
std::optional<double> rate(const nlohmann::json& entry, const char* field) {
  const auto found = entry.find(field);
  if (found == entry.end() || !found->is_number()) return std::nullopt;
  const double value = found->get<double>();
  return std::isfinite(value) && value > 0 && value < 1e18 ? std::optional<double>(value) : std::nullopt;
}

}  // namespace

std::string ceiling_cache_path() {
  namespace fs = std::filesystem;
  // The XDG rule: a relative path is invalid and is ignored.
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && fs::path(cache).is_absolute())
    return fs::path(cache) / "conclave" / "cpu.json";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0')
    return fs::path(home) / ".cache" / "conclave" / "cpu.json";
  return {};
}

std::string ceiling_key(const DeviceFacts& facts) {
  return fmt::format("{}|{}|{}", facts.name, facts.num_threads, version());
}

std::optional<CpuCeilings> load_ceilings(const std::string& path, const std::string& key) {
  if (path.empty()) return std::nullopt;
  const nlohmann::json file = read_file(path);
  const auto entries = file.find("entries");
  if (entries == file.end() || !entries->is_object() || !entries->contains(key)) return std::nullopt;
  const nlohmann::json& entry = (*entries)[key];
  if (!entry.is_object()) return std::nullopt;
  const auto bytes = rate(entry, "read_bytes_per_second"), f32 = rate(entry, "f32_flops"),
             bf16 = rate(entry, "bf16_flops"), f16 = rate(entry, "f16_flops");
  if (!bytes || !f32 || !bf16 || !f16) return std::nullopt;
  return CpuCeilings{*bytes, *f32, *bf16, *f16};
}

std::string store_ceilings(const std::string& path, const std::string& key, const CpuCeilings& ceilings) {
  namespace fs = std::filesystem;
  if (path.empty()) return "neither XDG_CACHE_HOME nor HOME is set";
  std::error_code error;
  fs::create_directories(fs::path(path).parent_path(), error);
  if (error) return fmt::format("{}: {}", fs::path(path).parent_path().string(), error.message());
  nlohmann::json file = read_file(path);
  if (!file["entries"].is_object()) file["entries"] = nlohmann::json::object();
  file["entries"][key] = {{"read_bytes_per_second", ceilings.read_bytes_per_second},
                          {"f32_flops", ceilings.f32_flops},
                          {"bf16_flops", ceilings.bf16_flops},
                          {"f16_flops", ceilings.f16_flops}};
  const std::string temporary = fmt::format("{}.{}", path, getpid());
  {
    std::ofstream out(temporary);
    out << file.dump(2) << "\n";
    out.flush();
    if (!out) {
      std::remove(temporary.c_str());
      return fmt::format("{}: cannot be written", temporary);
    }
  }
  fs::rename(temporary, path, error);
  if (!error) return {};
  std::remove(temporary.c_str());
  return fmt::format("{}: {}", path, error.message());
}

}  // namespace conclave::cli
