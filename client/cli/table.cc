#include "client/cli/table.h"

#include <algorithm>

#include "absl/algorithm/container.h"

namespace epd::cli {
namespace {

// Columns that a UTF-8 text takes: continuation bytes take none.
size_t Width(const std::string& text) {
  return static_cast<size_t>(absl::c_count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string Pad(const std::string& text, size_t width, Align align) {
  const std::string spaces(width - std::min(width, Width(text)), ' ');
  return align == Align::kRight ? spaces + text : text + spaces;
}

// A cell is one line whatever a client put into its name.
std::string OneLine(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
  }
  return text;
}

}  // namespace

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

void Table::AddRow(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  for (std::string& cell : cells) cell = cell.empty() ? "-" : OneLine(std::move(cell));
  rows_.push_back(std::move(cells));
}

void Table::DropIfEmpty(size_t column) {
  const auto says_nothing = [&](const auto& row) { return row[column] == "-"; };
  if (!absl::c_all_of(rows_, says_nothing)) return;
  const auto at = static_cast<std::ptrdiff_t>(column);
  columns_.erase(columns_.begin() + at);
  for (auto& row : rows_) row.erase(row.begin() + at);
}

std::string Table::ToString() const {
  std::vector<size_t> widths;
  for (size_t i = 0; i < columns_.size(); ++i) {
    widths.push_back(Width(columns_[i].title));
    for (const auto& row : rows_) widths[i] = std::max(widths[i], Width(row[i]));
  }
  std::string text;
  const auto append = [&](const auto& cell_of) {
    std::string line;
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (i > 0) line += "  ";
      line += Pad(cell_of(i), widths[i], columns_[i].align);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  append([&](size_t i) { return columns_[i].title; });
  for (const auto& row : rows_) append([&](size_t i) { return row[i]; });
  return text;
}

std::string AlignedPairs(const std::vector<std::pair<std::string, std::string>>& pairs) {
  size_t width = 0;
  for (const auto& [label, value] : pairs) {
    if (!value.empty()) width = std::max(width, Width(label));
  }
  std::string text;
  for (const auto& [label, value] : pairs) {
    if (!value.empty())
      text += Pad(label + ":", width + 1, Align::kLeft) + "  " + OneLine(value) + "\n";
  }
  return text;
}

}  // namespace epd::cli
