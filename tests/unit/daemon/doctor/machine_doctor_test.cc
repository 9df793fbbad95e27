// Goal: every problem that an operator can have is found, and is told with its consequence and its
// fix.
#include "daemon/doctor/machine_doctor.h"

#include <algorithm>
#include <functional>
#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace epd {
namespace {

using testing::HasSubstr;

constexpr uint64_t kGib = uint64_t{1} << 30;

MachineReport GoodMachine() {
  MachineReport machine;
  machine.num_cores = 8;
  machine.memory_bytes = 64 * kGib;
  machine.transparent_huge_pages = "always within_size [advise] never deny force";
  machine.descriptors_limit = 65536;
  machine.descriptors_used = 100;
  machine.locked_limit_bytes = UINT64_MAX;
  machine.shm_bytes = 32 * kGib;
  machine.socket_folder = "/run/epd";
  machine.socket_folder_mode = 0755;
  machine.socket_folder_free_bytes = kGib;
  return machine;
}

DaemonReport GoodDaemon() {
  DaemonReport daemon;
  daemon.staging_bytes = 16 * kGib;
  daemon.num_sessions = 4;
  daemon.workers = {{.name = "cpu", .state = "RUNNING"},
                    {.name = "cuda:1", .state = "RUNNING", .gpu = "Some GPU"}};
  daemon.nccl_version = "2.28.9";
  daemon.nccl_path = "/usr/lib/libnccl.so.2";
  daemon.certificate_ends = "2027-01-01";
  daemon.certificate_names = "10.0.0.1";
  return daemon;
}

TEST(DoctorTest, GoodMachineHasNoProblem) {
  const v1::GetDoctorResponse said = Diagnose(GoodMachine(), GoodDaemon());
  for (const v1::Finding& finding : said.findings()) {
    EXPECT_TRUE(finding.ok()) << finding.what() << ": " << finding.found();
    EXPECT_FALSE(finding.found().empty()) << finding.what();
  }
}

TEST(DoctorTest, EachProblemIsFoundAloneWithConsequenceAndFix) {
  const std::map<std::string, std::function<void(MachineReport&, DaemonReport&)>> problems = {
      {"worker", [](MachineReport&, DaemonReport& d) { d.workers[0].state = "BACKING_OFF"; }},
      {"worker cuda:1",
       [](MachineReport&, DaemonReport& d) { d.workers[1].problem = "no driver"; }},
      {"libnccl", [](MachineReport&,
                     DaemonReport& d) { d.nccl_version.clear(), d.nccl_problem = "not found"; }},
      {"certificate",
       [](MachineReport&, DaemonReport& d) { d.certificate_problem = "ends in 12 days"; }},
      {"huge pages for shared memory",
       [](MachineReport& m, DaemonReport&) { m.transparent_huge_pages = "always advise [never]"; }},
      {"memory limit", [](MachineReport& m, DaemonReport&) { m.cgroup_limit_bytes = 20 * kGib; }},
      {"cores", [](MachineReport& m, DaemonReport&) { m.num_cores = 2; }},
      {"open files", [](MachineReport& m, DaemonReport&) { m.descriptors_limit = 1024; }},
      {"locked memory", [](MachineReport& m, DaemonReport&) { m.locked_limit_bytes = 8 << 20; }},
      {"/dev/shm", [](MachineReport& m, DaemonReport&) { m.shm_bytes = 64 << 20; }},
      {"runtime folder", [](MachineReport& m, DaemonReport&) { m.socket_folder_mode = 0777; }},
  };
  for (const auto& [what, break_it] : problems) {
    MachineReport machine = GoodMachine();
    DaemonReport daemon = GoodDaemon();
    break_it(machine, daemon);
    const v1::GetDoctorResponse said = Diagnose(machine, daemon);
    for (const v1::Finding& finding : said.findings()) {
      EXPECT_EQ(finding.ok(), finding.what() != what)
          << finding.what() << " when " << what << " is broken";
      EXPECT_EQ(finding.fix().empty(), finding.ok()) << finding.what();
      EXPECT_EQ(finding.consequence().empty(), finding.ok()) << finding.what();
    }
  }
}

TEST(DoctorTest, TheLimitOfMemoryThatCountsIsNamed) {
  MachineReport machine = GoodMachine();
  machine.cgroup_limit_bytes = 20 * kGib;
  machine.cgroup_file = "/sys/fs/cgroup/job/memory.max";
  machine.least_room_bytes = kGib;
  machine.least_room_file = "/proc/meminfo";
  const auto said = Diagnose(machine, GoodDaemon());
  const auto finding =
      std::find_if(said.findings().begin(), said.findings().end(),
                   [](const v1::Finding& one) { return one.what() == "memory limit"; });
  ASSERT_NE(finding, said.findings().end());
  EXPECT_THAT(finding->found(), HasSubstr("/sys/fs/cgroup/job/memory.max"));
  EXPECT_THAT(finding->found(), HasSubstr("1024 MiB are left by /proc/meminfo"));
}

TEST(DoctorTest, StickyFolderOfEverybodyIsFineAndAFullOneIsNot) {
  MachineReport machine = GoodMachine();
  machine.socket_folder_mode = 01777;
  EXPECT_TRUE(Diagnose(machine, GoodDaemon()).findings().rbegin()->ok());
  machine.socket_folder_free_bytes = 0;
  EXPECT_THAT(Diagnose(machine, GoodDaemon()).findings().rbegin()->fix(), HasSubstr("free space"));
}

TEST(DoctorTest, LockedMemoryMattersToGpusAlone) {
  MachineReport machine = GoodMachine();
  machine.locked_limit_bytes = 8 << 20;
  DaemonReport daemon = GoodDaemon();
  daemon.workers.pop_back();
  const auto answer = Diagnose(machine, daemon);
  for (const v1::Finding& finding : answer.findings())
    EXPECT_TRUE(finding.ok()) << finding.what() << ": " << finding.found();
}

TEST(DoctorTest, ThisMachineCanBeRead) {
  const MachineReport machine = ReadMachine("/tmp/epd.sock");
  EXPECT_GT(machine.num_cores, 0u);
  EXPECT_GT(machine.memory_bytes, 0u);
  EXPECT_GT(machine.descriptors_used, 2u);
  EXPECT_EQ(machine.socket_folder, "/tmp");
}

}  // namespace
}  // namespace epd
