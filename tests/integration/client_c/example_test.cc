// Goal: the example that people read first works as its head says, with both executors.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <string>

#include "tests/integration/client_c/harness/running_daemon.h"

namespace epd::testing {
namespace {

int RunExample(const std::string& arguments) {
  const int status = std::system(("client/c/example/exchange_example " + arguments).c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(ExampleTest, EveryRankGetsWhatItExpects) {
  RunningDaemon daemon;
  setenv("EPD_SOCKET", daemon.socket_path().c_str(), 1);
  EXPECT_EQ(RunExample(""), 0);
  EXPECT_EQ(RunExample("--ranks=2 --tokens=100 --hidden=256 --steps=3 --worker_executor"), 0);
}

TEST(ExampleTest, ItFailsWithoutADaemonAndWithAnUnknownArgument) {
  setenv("EPD_SOCKET", "/tmp/there-is-no-epd.sock", 1);
  EXPECT_EQ(RunExample("--ranks=1"), 1);
  EXPECT_EQ(RunExample("--rank=1"), 2);
}

}  // namespace
}  // namespace epd::testing
