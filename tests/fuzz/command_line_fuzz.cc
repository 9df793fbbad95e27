// Goal: no command line ends epctl otherwise than with options or with a text that says what is wrong.
#include <string>
#include <vector>

#include "client/cli/options.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr const char* kCommands[] = {"status", "groups", "ranks", "health", "memory", "plan",
                                       "create", "drain",  "close", "top",    "why",    "sessions"};
  epd::fuzz::Input in(data, size);
  std::vector<std::string> arguments;
  const uint32_t command = in.Below(16);
  if (command < std::size(kCommands)) arguments.push_back(kCommands[command]);
  while (!in.empty()) arguments.push_back(in.Text());
  const epd::cli::ParsedOptions parsed = epd::cli::ParseOptions(arguments);
  EPD_FUZZ_CHECK(parsed.options.has_value() || !parsed.text.empty());
  if (parsed.options.has_value()) EPD_FUZZ_CHECK(!parsed.options->command.empty());
  return 0;
}
