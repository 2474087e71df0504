// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: rows of cells. Out: text with aligned columns. Cells are ASCII.
#pragma once

#include <string>
#include <vector>

namespace conclave::cli {

class Table {
 public:
  /// One letter of `alignment` for each column: l or r.
  Table(std::vector<std::string> header, std::string alignment);
  void add(std::vector<std::string> row);
  bool empty() const noexcept { return rows_.size() == 1; }
  std::string str() const;

 private:
  std::string alignment_;
  std::vector<std::vector<std::string>> rows_;  ///< The first is the header.
};

}  // namespace conclave::cli
