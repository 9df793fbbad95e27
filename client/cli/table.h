// Text tables with aligned columns.
//
//   Table table({{"RANK", Align::kRight}, {"HOST"}});
//   table.AddRow({"0", "node7"});
//   out << table.ToString();
//
// Most are data, a line for each column:
//
//   const Fields<Rank> fields = {
//       {"RANK", [](const Rank& r) { return absl::StrCat(r.rank()); }, Align::kRight},
//       {"HOST", [](const Rank& r) { return r.host(); }},
//   };
//   out << MakeTable(ranks, fields, "no ranks\n");
#pragma once

#include <functional>
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

// A column and what a row says there; `optional`: left out where no row says anything.
template <typename Row>
struct Field {
  std::string title;
  std::function<std::string(const Row&)> cell;
  Align align = Align::kLeft;
  bool optional = false;
};
template <typename Row>
using Fields = std::vector<Field<Row>>;

// `none` (unless it is empty) if there are no rows.
template <typename Row, typename Rows>
std::string MakeTable(const Rows& rows, const Fields<Row>& fields, const std::string& none) {
  std::vector<Column> columns;
  for (const Field<Row>& field : fields) columns.push_back({field.title, field.align});
  Table table(std::move(columns));
  for (const Row& row : rows) {
    std::vector<std::string> cells;
    for (const Field<Row>& field : fields) cells.push_back(field.cell(row));
    table.AddRow(std::move(cells));
  }
  for (size_t i = fields.size(); i-- > 0;) {
    if (fields[i].optional) table.DropIfEmpty(i);
  }
  return table.empty() && !none.empty() ? none : table.ToString();
}

// "label:  value" lines with the values in one column; pairs with an empty value are left out.
std::string AlignedPairs(const std::vector<std::pair<std::string, std::string>>& pairs);

}  // namespace epd::cli
