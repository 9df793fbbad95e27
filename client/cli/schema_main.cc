// Writes the JSON schemas of epctl's output: epctl_schema FOLDER. deploy/schema holds the result,
// and a test compares.
#include <filesystem>
#include <fstream>
#include <iostream>

#include "client/cli/commands/command.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: epctl_schema FOLDER\n";
    return 2;
  }
  for (const auto& [name, text] : epd::cli::OutputSchemas()) {
    std::ofstream file(std::filesystem::path(argv[1]) / name);
    file << text;
    file.close();
    if (!file) {
      std::cerr << "cannot write " << argv[1] << "/" << name << "\n";
      return 1;
    }
  }
  return 0;
}
