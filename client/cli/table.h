// Text tables with aligned columns.
//
//   Table table({{"RANK", Align::kRight}, {"HOST"}});
//   table.AddRow({"0", "node7"});
//   out << table.ToString();
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace epd::cli {

enum class Align { kLeft, kRight };

struct Column {
  std::string title;
  Align align = Align::kLeft;
};

class Table {
 public:
  explicit Table(std::vector<Column> columns);

  // `cells` has one entry per column; an empty one is shown as "-".
  void AddRow(std::vector<std::string> cells);
  // Leaves a column out in which no row says anything.
  void DropIfEmpty(size_t column);
  bool empty() const { return rows_.empty(); }

  // Title line and rows, two spaces between columns, no trailing spaces, a newline after each line.
  std::string ToString() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// "label:  value" lines with the values in one column; pairs with an empty value are left out.
std::string AlignedPairs(const std::vector<std::pair<std::string, std::string>>& pairs);

}  // namespace epd::cli
