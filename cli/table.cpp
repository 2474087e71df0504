// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Column widths, padding and the rule below the header.
#include "table.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace conclave::cli {
namespace {

std::string padded(const std::string& cell, std::size_t width, char alignment) {
  return alignment == 'r' ? fmt::format("{:>{}}", cell, width) : fmt::format("{:<{}}", cell, width);
}

}  // namespace

Table::Table(std::vector<std::string> header, std::string alignment) : alignment_(std::move(alignment)) {
  alignment_.resize(header.size(), 'l');
  rows_.push_back(std::move(header));
}

void Table::add(std::vector<std::string> row) {
  row.resize(rows_.front().size());
  rows_.push_back(std::move(row));
}

std::string Table::str() const {
  std::vector<std::size_t> widths(rows_.front().size(), 0);
  for (const auto& row : rows_)
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  std::string text;
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    std::string line;
    for (std::size_t c = 0; c < widths.size(); ++c)
      line += (c > 0 ? "  " : "") + padded(rows_[r][c], widths[c], alignment_[c]);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
    if (r == 0) text += std::string(line.size(), '-') + "\n";
  }
  return text;
}

}  // namespace conclave::cli
