// Goal: a socket's file that is gone or another's is made anew where that is possible, and what is wrong is told once, until it is not.
#include "daemon/node/attach/socket_watch.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace epd {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class SocketWatchTest : public testing::Test {
 protected:
  struct File {
    bool is_there = true;
    absl::Status can;
    int num_renewed = 0;
  };
  SocketWatch::Socket Of(const std::string& path, File& file) {
    return {path, [&file] { return file.is_there; },
            [&file] {
              ++file.num_renewed;
              file.is_there = file.can.ok();
              return file.can;
            }};
  }

  File attach_;
  File grpc_;
  std::vector<std::string> told_;
  SocketWatch watch_{{Of("/run/epd/epd.sock", attach_), Of("/run/epd/epd-grpc.sock", grpc_)},
                     [this](std::string problem) { told_.push_back(std::move(problem)); }};
};

TEST_F(SocketWatchTest, FilesThatAreThereAreLeftAlone) {
  watch_.Look();
  EXPECT_EQ(attach_.num_renewed + grpc_.num_renewed, 0);
  EXPECT_THAT(told_, IsEmpty());
}

TEST_F(SocketWatchTest, AFileThatIsGoneIsMadeAnew) {
  attach_.is_there = grpc_.is_there = false;
  watch_.Look();
  EXPECT_EQ(attach_.num_renewed, 1);
  EXPECT_EQ(grpc_.num_renewed, 1);
  watch_.Look();
  EXPECT_EQ(attach_.num_renewed, 1);
  EXPECT_THAT(told_, IsEmpty()) << "nothing is wrong any more";
}

TEST_F(SocketWatchTest, WhereAnotherServesThatIsToldOnceAndTriedUntilItIsGone) {
  attach_.is_there = grpc_.is_there = false;
  attach_.can = absl::AlreadyExistsError("another epd (pid 7) serves it; stop one");
  for (int i = 0; i < 3; ++i) watch_.Look();
  EXPECT_THAT(told_, ElementsAre(AllOf(HasSubstr("/run/epd/epd.sock"),
                                       HasSubstr("another epd (pid 7) serves it; stop one"))));
  EXPECT_EQ(grpc_.num_renewed, 0) << "the other's as well";
  attach_.can = absl::OkStatus();
  watch_.Look();
  EXPECT_EQ(grpc_.num_renewed, 1);
  EXPECT_THAT(told_, ElementsAre(HasSubstr("another"), ""));
}

TEST_F(SocketWatchTest, OnceEpdEndsNothingIsMade) {
  watch_.Stop();
  attach_.is_there = false;
  watch_.Look();
  EXPECT_EQ(attach_.num_renewed, 0);
}

}  // namespace
}  // namespace epd
