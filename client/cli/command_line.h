// epctl's command line as data, from which the shells' completion and the manual are made.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace epd::cli {

struct OptionText {
  std::vector<std::string> names;  // "-o", "--output"; of a positional its only one, "group".
  std::string value;               // "FORMAT"; empty: it takes none.
  std::string help;
  std::vector<std::string> choices;  // All values that there are; empty: any.

  bool is_file() const { return value == "FILE" || value == "PATH"; }
};

struct CommandText {
  std::string name;
  std::string help;
  std::optional<OptionText> positional;  // "group": name of one; else one of its choices.
  bool needs_positional = false;
  std::vector<OptionText> options;  // Beside the common ones.
};

struct CommandLine {
  std::string help;
  std::vector<OptionText> options;  // Common to all commands.
  std::vector<CommandText> commands;
  std::string exit_codes;
};

// The names of shells that CompletionScript knows.
inline constexpr const char* kShells[] = {"bash", "zsh", "fish"};

// What the shell reads to complete words of epctl: commands, options, their values where they are known, files, and names of
// groups, for which it asks the daemon and waits at most a second. `shell` is one of kShells.
std::string CompletionScript(const CommandLine& line, const std::string& shell);

// epctl(1), for man -l.
std::string ManPage(const CommandLine& line, const std::string& version);

}  // namespace epd::cli
