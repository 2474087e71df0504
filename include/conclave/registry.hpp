// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The parts that selection may choose from: one ordered list for each stage, best first, reference last. A value, not
// a global: a third party copies the built-in registry and adds its own entries.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "conclave/config.hpp"
#include "conclave/experts.hpp"
#include "conclave/prepare_finalize.hpp"
#include "conclave/router.hpp"
#include "conclave/support.hpp"

namespace conclave {

/// One part. `name` is "<stage>/<variant>" and the same everywhere: file, report, bench label.
template <class Part>
struct Entry {
  std::string name;
  ActivationFormat format = ActivationFormat::standard;  ///< Experts and prepare/finalize.
  bool monolithic = false;                               ///< Experts and prepare/finalize.
  /// Experts: output_kind() is unfinalized. Prepare/finalize: supports_deferred_finalize().
  bool defers_finalize = false;
  std::function<Support(const Problem&)> supports;
  std::function<std::unique_ptr<Part>(const PartContext&)> make;
};

/// True if the two can be composed: one format, one kind, and no finalize is asked for that cannot be left out.
inline bool composable(const Entry<Experts>& experts, const Entry<PrepareFinalize>& ends) noexcept {
  return experts.format == ends.format && experts.monolithic == ends.monolithic &&
         (!experts.defers_finalize || ends.defers_finalize);
}

template <class Part>
class PartList {
 public:
  std::span<const Entry<Part>> entries() const noexcept { return entries_; }
  const Entry<Part>* find(std::string_view name) const noexcept {
    for (const auto& entry : entries_)
      if (entry.name == name) return &entry;
    return nullptr;
  }
  void add_first(Entry<Part> entry) { insert(0, std::move(entry)); }
  void add_last(Entry<Part> entry) { insert(entries_.size(), std::move(entry)); }
  /// Throws Error if `successor` is not in the list, or the new name already is.
  void add_before(std::string_view successor, Entry<Part> entry) { insert(index_of(successor), std::move(entry)); }

 private:
  void insert(std::size_t at, Entry<Part> entry) {
    if (find(entry.name) != nullptr)
      throw Error(ErrorKind::invalid_argument, "registry: \"" + entry.name + "\" is registered already");
    entries_.insert(entries_.begin() + static_cast<std::ptrdiff_t>(at), std::move(entry));
  }
  std::size_t index_of(std::string_view name) const {
    for (std::size_t i = 0; i < entries_.size(); ++i)
      if (entries_[i].name == name) return i;
    throw Error(ErrorKind::invalid_argument, "registry: no part named \"" + std::string(name) + "\"");
  }
  std::vector<Entry<Part>> entries_;
};

struct Registry {
  PartList<Router> routers;
  PartList<PrepareFinalize> prepare_finalizes;
  PartList<Experts> experts;
};

/// Every part that this build has.
Registry builtin_registry();

}  // namespace conclave
