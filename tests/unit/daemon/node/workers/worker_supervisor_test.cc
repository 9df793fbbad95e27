// Goal: what is said of a worker's end is what happened to it, and ending it always ends.
#include "daemon/node/workers/worker_supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace epd {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

class Ends : public WorkerObserver {
 public:
  void OnWorkerSpawned() override {}
  void OnWorkerReady(uint64_t, const v1::WorkerReady&) override {}
  void OnWorkerMessage(uint64_t, const v1::FromWorker&, std::vector<UniqueFd>) override {}
  void OnWorkerHeldUp(uint32_t) override {}
  void OnWorkerDead(uint64_t, bool, const absl::Status& cause) override { last = cause; }

  std::optional<absl::Status> last;
};

// A script in the place of epd-worker. It never becomes ready.
class WorkerSupervisorTest : public ::testing::Test {
 protected:
  WorkerSupervisor::Options Script(const std::string& line) {
    const ::testing::TestInfo* test = ::testing::UnitTest::GetInstance()->current_test_info();
    const std::string path = absl::StrCat(::testing::TempDir(), "/worker_", test->name());
    std::ofstream(path) << "#!/bin/sh\n" << line << "\n";
    chmod(path.c_str(), 0700);
    WorkerSupervisor::Options options;
    options.binary = path;
    options.backoff.min = absl::Hours(1);  // One start per test.
    return options;
  }
  // Runs loop and supervisor until the worker is reaped.
  absl::Status WaitForEnd(WorkerSupervisor& supervisor) {
    const absl::Time limit = MonotonicNow() + absl::Seconds(20);
    while (!ends_.last.has_value() && MonotonicNow() < limit) {
      loop_.RunOnce(std::min(limit, supervisor.NextDeadline()));
      if (!ends_.last.has_value()) supervisor.Tick(MonotonicNow());
    }
    return ends_.last.value_or(absl::DeadlineExceededError("the worker does not end"));
  }

  EventLoop loop_;
  SharedSegment records_ = CreateRecords(shm::kSlotsPerSession).value();
  Ends ends_;
};

TEST_F(WorkerSupervisorTest, ClaimsNoKillOfAWorkerThatItCouldNotSendTo) {
  WorkerSupervisor supervisor(Script("exec sleep 100"), loop_, records_, ends_);
  supervisor.Tick(MonotonicNow());
  const int pid = supervisor.figures().pid;
  ASSERT_GT(pid, 0);
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  siginfo_t info = {};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
  supervisor.Send(v1::ToWorker());  // The socket is broken, and the loop has not run yet.
  const std::string how(WaitForEnd(supervisor).message());
  EXPECT_THAT(how, EndsWith(" ended: killed by signal 9 (Killed)"));
  EXPECT_EQ(supervisor.figures().last_exit, "killed by signal 9 (Killed)");
}

TEST_F(WorkerSupervisorTest, SaysThatItKilledOneThatClosedItsSocketAndStayed) {
  WorkerSupervisor supervisor(Script("exec 3<&-; exec sleep 100"), loop_, records_, ends_);
  supervisor.Tick(MonotonicNow());
  EXPECT_THAT(std::string(WaitForEnd(supervisor).message()),
              HasSubstr("killed by signal 9 (Killed) by epd: it closed its socket"));
}

// A driver that nothing keeps loaded takes seconds for each GPU of the machine.
TEST_F(WorkerSupervisorTest, WaitsLongerForAGpusWorkerThatStarts) {
  WorkerSupervisor::Options options = Script("exec sleep 100");
  options.stuck = absl::Seconds(30);
  const absl::Time start = MonotonicNow();
  WorkerSupervisor cpu(options, loop_, records_, ends_);
  cpu.Tick(start);
  EXPECT_EQ(cpu.NextDeadline(), start + absl::Seconds(30));
  cpu.Stop(start);
  options.hello.set_cuda_device(0);
  WorkerSupervisor gpu(options, loop_, records_, ends_);
  gpu.Tick(start);
  EXPECT_EQ(gpu.NextDeadline(), start + absl::Seconds(90));
  gpu.Tick(start + absl::Seconds(89));
  EXPECT_EQ(kill(gpu.figures().pid, 0), 0);
  gpu.Tick(start + absl::Seconds(90));
  EXPECT_THAT(std::string(WaitForEnd(gpu).message()),
              HasSubstr("it did not answer for 1m30s as it started (worker_stuck)"));
  EXPECT_EQ(gpu.figures().restarts.at("unanswered"), 1u);
}

TEST_F(WorkerSupervisorTest, SaysTheStatusOfOneThatExits) {
  WorkerSupervisor supervisor(Script("exit 3"), loop_, records_, ends_);
  supervisor.Tick(MonotonicNow());
  const std::string how(WaitForEnd(supervisor).message());
  EXPECT_THAT(how, EndsWith("exited with status 3"));
  EXPECT_THAT(how, Not(HasSubstr("by epd")));
}

TEST_F(WorkerSupervisorTest, StopKillsOneThatDoesNotEndByItsDeadline) {
  WorkerSupervisor supervisor(Script("exec sleep 100"), loop_, records_, ends_);
  supervisor.Tick(MonotonicNow());
  const int pid = supervisor.figures().pid;
  supervisor.Stop(MonotonicNow() + absl::Milliseconds(50));
  EXPECT_EQ(supervisor.figures().state, WorkerSupervisor::State::kStopped);
  EXPECT_EQ(kill(pid, 0), -1) << "it was not reaped";
  EXPECT_FALSE(ends_.last.has_value()) << "nobody is told of a worker that epd stopped";
}

}  // namespace
}  // namespace epd
