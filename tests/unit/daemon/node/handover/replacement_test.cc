// Goal: epd leaves its process only to a program that it may run and that says that it can take over.
#include "daemon/node/handover/replacement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace epd {
namespace {

using testing::HasSubstr;

class ReplacementTest : public testing::Test {
 protected:
  ReplacementTest() {
    replacement_.Set({"/bin/true", {}, {}, [this](const Replacement::Request& request) {
                        executed_ = request.program;
                        return absl::InternalError("it does not run");
                      }});
  }

  std::string Script(const std::string& body, mode_t mode = 0755) {
    const std::string path =
        absl::StrCat(testing::TempDir(), "/program-", getpid(), "-", num_scripts_++);
    std::ofstream(path) << "#!/bin/sh\n" << body << "\n";
    chmod(path.c_str(), mode);
    return path;
  }
  // What Begin comes to.
  absl::Status Begin(const std::string& program) {
    std::optional<absl::Status> answer;
    replacement_.Begin({program, "test"}, [&](const absl::StatusOr<v1::HandoverVerdict>& verdict) {
      answer = verdict.status();
    });
    const absl::Time deadline = MonotonicNow() + absl::Seconds(20);
    while (!answer.has_value() && MonotonicNow() < deadline) {
      loop_.RunOnce(std::min(deadline, replacement_.NextDeadline()));
      replacement_.Tick(MonotonicNow());
    }
    return answer.value_or(absl::InternalError("no answer"));
  }

  EventLoop loop_;
  Replacement replacement_{loop_};
  std::string executed_;
  int num_scripts_ = 0;
};

TEST_F(ReplacementTest, WhatMayNotRunIsRefusedAndSaysWhy) {
  EXPECT_EQ(Begin("epd").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Begin("/nowhere/epd").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Begin(testing::TempDir()).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Begin(Script("", 0644)).code(), absl::StatusCode::kNotFound);
  const absl::Status writable = Begin(Script("", 0777));
  EXPECT_EQ(writable.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(writable.message(), HasSubstr("0777"));
}

TEST_F(ReplacementTest, AProgramThatSaysNothingIsNotRun) {
  const absl::Status ended = Begin(Script("exit 2"));
  EXPECT_EQ(ended.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(ended.message(), HasSubstr("exited with status 2"));
  const absl::Status odd = Begin(Script("printf '\\377\\377' >&3; sleep 1"));
  EXPECT_THAT(odd.message(), HasSubstr("no HandoverVerdict"));
  EXPECT_FALSE(replacement_.IsDue(MonotonicNow() + absl::Hours(1)));
  EXPECT_EQ(replacement_.NextDeadline(), absl::InfiniteFuture());
}

// `printf` writes an empty status and the version "9".
constexpr char kAgrees[] = "printf '\\012\\000\\022\\0019' >&3; sleep 1";

TEST_F(ReplacementTest, OneThatAgreesIsRunAndWhereThatFailsAnotherOneMayBe) {
  const std::string program = Script(kAgrees);
  ASSERT_TRUE(Begin(program).ok());
  EXPECT_EQ(Begin(program).code(), absl::StatusCode::kAborted) << "one at a time";
  EXPECT_FALSE(replacement_.IsDue(MonotonicNow() - absl::Seconds(1)));
  ASSERT_TRUE(replacement_.IsDue(replacement_.NextDeadline()));
  replacement_.Run();
  EXPECT_EQ(executed_, program);
  EXPECT_FALSE(replacement_.IsDue(MonotonicNow() + absl::Hours(1)));
  EXPECT_TRUE(Begin(program).ok());
}

}  // namespace
}  // namespace epd
