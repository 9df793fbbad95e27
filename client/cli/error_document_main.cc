// Writes the table of errors into the runbook: error_document FILE. A test compares.
#include <fstream>
#include <iostream>
#include <sstream>

#include "client/cli/error_table.h"

int main(int argc, char** argv) {
  const std::string path = argc == 2 ? argv[1] : "";
  std::ostringstream before;
  before << std::ifstream(path).rdbuf();
  const std::string text = epd::cli::WithErrorTable(before.str());
  if (text.empty()) {
    std::cerr << "usage: error_document RUNBOOK, which has a place for the table\n";
    return 1;
  }
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) std::cerr << "error_document: cannot write " << path << "\n";
  return file ? 0 : 1;
}
