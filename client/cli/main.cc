// epctl, the operator's tool.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <iostream>

#include "absl/time/clock.h"
#include "client/cli/colours.h"
#include "client/cli/epctl.h"
#include "client/cli/keys.h"

namespace {

std::function<char(absl::Duration)> WaitForKey() {
  if (isatty(STDIN_FILENO) != 1 || isatty(STDOUT_FILENO) != 1) return nullptr;
  return [](absl::Duration patience) {
    const epd::cli::Keys keys;
    return epd::cli::Keys::Wait(patience);
  };
}

// Else the first socket that epctl opens would be its standard output. Writing there fails.
void FillClosedStandardFiles() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) < 0) open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

}  // namespace

int main(int argc, char** argv) {
  FillClosedStandardFiles();
  const epd::cli::SearchContext search{.getenv = [](const char* name) { return std::getenv(name); },
                                       .uid = geteuid()};
  const epd::cli::Terminal terminal{
      .out = std::cout,
      .err = std::cerr,
      .is_tty = isatty(STDOUT_FILENO) == 1,
      .sleep = absl::SleepFor,
      .wait_for_key = WaitForKey(),
      .colours = epd::cli::UsesColours(isatty(STDOUT_FILENO) == 1, search.getenv),
      .progress = isatty(STDERR_FILENO) == 1 ? &std::cerr : nullptr};
  return static_cast<int>(epd::cli::RunEpctl({argv + 1, argv + argc}, search, terminal));
}
