// Goal: what a sanitizer finds in a daemon or its worker fails the test that ran them.
#include "tests/integration/client_c/harness/running_daemon.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

namespace epd::testing {
namespace {

TEST(RunningDaemonTest, AReportOfASanitizerFailsTheTest) {
  EXPECT_NONFATAL_FAILURE(
      {
        const RunningDaemon daemon(
            {},
            {"/bin/sh", "-c", "echo 'ERROR: AddressSanitizer: planted' >&2; exec \"$@\"", "sh"});
      },
      "AddressSanitizer: planted");
}

TEST(RunningDaemonTest, ADaemonThatEndsWithAnErrorFailsTheTest) {
  EXPECT_NONFATAL_FAILURE(
      {
        const RunningDaemon daemon(
            {}, {"/bin/sh", "-c", "\"$@\" & trap 'kill $!; wait $!; exit 3' TERM; wait", "sh"});
      },
      "epd did not end well");
}

TEST(RunningDaemonTest, OneThatFindsNothingDoesNot) { const RunningDaemon daemon; }

}  // namespace
}  // namespace epd::testing
