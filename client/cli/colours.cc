#include "client/cli/colours.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace epd::cli {
namespace {

constexpr char kRed[] = "\033[31m";
constexpr char kGreen[] = "\033[32m";
constexpr char kYellow[] = "\033[33m";
constexpr char kPlain[] = "\033[0m";

constexpr absl::string_view kHealth = "health:";
constexpr absl::string_view kProblem = "problem:";
constexpr absl::string_view kNotOk = "NOT OK";

// Of what a node says of its health; "" for any other word.
absl::string_view ColourOf(absl::string_view word) {
  if (word == "ok") return kGreen;
  if (word == "degraded") return kYellow;
  return word == "unhealthy" ? kRed : "";
}

std::string ColouredLine(absl::string_view line) {
  for (const auto& [start, colour] : {std::pair(kProblem, kYellow), std::pair(kNotOk, kRed)}) {
    if (absl::StartsWith(line, start))
      return absl::StrCat(colour, start, kPlain, line.substr(start.size()));
  }
  if (!absl::StartsWith(line, kHealth)) return std::string(line);
  const size_t begin = line.find_first_not_of(' ', kHealth.size());
  if (begin == absl::string_view::npos) return std::string(line);
  const absl::string_view word = line.substr(begin, line.find_first_of(" ,", begin) - begin);
  const absl::string_view colour = ColourOf(word);
  if (colour.empty()) return std::string(line);
  return absl::StrCat(line.substr(0, begin), colour, word, kPlain,
                      line.substr(begin + word.size()));
}

}  // namespace

bool UsesColours(bool is_tty, const std::function<const char*(const char*)>& getenv) {
  const auto text = [&](const char* name) -> absl::string_view {
    const char* const value = getenv(name);
    return value == nullptr ? "" : value;
  };
  return is_tty && text("NO_COLOR").empty() && text("TERM") != "dumb";
}

std::string Coloured(const std::string& table) {
  return absl::StrJoin(
      absl::StrSplit(table, '\n'), "\n",
      [](std::string* out, absl::string_view line) { absl::StrAppend(out, ColouredLine(line)); });
}

}  // namespace epd::cli
