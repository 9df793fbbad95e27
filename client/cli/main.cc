// epctl, the operator's tool.
#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include "absl/time/clock.h"
#include "client/cli/epctl.h"

int main(int argc, char** argv) {
  const epd::cli::SearchContext search{.getenv = [](const char* name) { return std::getenv(name); },
                                       .uid = getuid()};
  const epd::cli::Terminal terminal{.out = std::cout,
                                    .err = std::cerr,
                                    .is_tty = isatty(STDOUT_FILENO) == 1,
                                    .sleep = absl::SleepFor};
  return static_cast<int>(epd::cli::RunEpctl({argv + 1, argv + argc}, search, terminal));
}
