// Every error that epd says, by its number: what it means and what to do. `epctl explain` reads it out, and the runbook's table
// of errors is made from it.
//
// A text of epd ends, or its first sentence does, with "[EPD-1302]"; whoever makes the text writes the number there, and
// tests/lint/error_numbers.py holds both sides together. Numbers are never used again for something else. A text without one is
// explained by its code: EPD-0014 is UNAVAILABLE.
#pragma once

#include <string>
#include <vector>

namespace epd::cli {

struct ErrorEntry {
  int number = 0;    // Up to 16: a code of proto/epd/v1/code.h.
  std::string code;  // "UNAVAILABLE"; "any": the error keeps the code that it came with.
  std::string what;  // As the text says it.
  std::string causes;
  std::string action;
  std::string test;  // That provokes it, from the root of the repository.
};

// Sorted by number.
const std::vector<ErrorEntry>& ErrorTable();

// "EPD-1302".
std::string NumberText(int number);

// What `asked` means: one entry for a number ("EPD-1302", "epd-1302", "1302"), for a code ("UNAVAILABLE") its own and
// those that say it, all for "". Empty: there is no such error.
std::vector<ErrorEntry> FindErrors(const std::string& asked);

// The runbook's table of errors, in Markdown, between the lines that `runbook` has for it; "": it has none.
std::string WithErrorTable(const std::string& runbook);

}  // namespace epd::cli
