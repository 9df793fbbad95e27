// Goal: what is installed on a machine decides what the doctor says, whatever it is; a library that ends
// its process takes a probing child with it, and neither epd nor its worker.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "daemon/backend/child_output.h"
#include "daemon/backend/cuda/device/machine_probe.h"
#include "tests/integration/client_c/harness/running_daemon.h"

namespace epd::testing {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

// The folder of the fake libraries first, as an administrator would put a driver's.
void SeeFakes(const std::string& cuda, const std::string& nccl_ep) {
  setenv("LD_LIBRARY_PATH", std::filesystem::absolute("tests/fakes/cuda").c_str(), 1);
  setenv("EPD_FAKE_CUDA", cuda.c_str(), 1);
  setenv("EPD_FAKE_NCCL_EP", nccl_ep.c_str(), 1);
}

void SeeNoFakes() {
  for (const char* name : {"LD_LIBRARY_PATH", "EPD_FAKE_CUDA", "EPD_FAKE_NCCL_EP"}) unsetenv(name);
}

class CudaProbe : public ::testing::Test {
 protected:
  ~CudaProbe() override { SeeNoFakes(); }

  cuda::ProbeResult Probe(absl::Duration limit = absl::Seconds(20)) {
    return cuda::ProbeInChild(WorkerBinary(), "/none", limit);
  }
};

TEST_F(CudaProbe, TheWorkersProgramNeedsNoDriver) {
  const absl::StatusOr<ChildOutput> needed =
      RunChild("/usr/bin/env", {"ldd", WorkerBinary()}, absl::Seconds(20));
  ASSERT_TRUE(needed.ok()) << needed.status();
  EXPECT_THAT(needed->output,
              AllOf(HasSubstr("libc.so"), Not(HasSubstr("libcuda")), Not(HasSubstr("libnccl"))));
}

TEST_F(CudaProbe, ADriverIsFoundWhereTheLoaderFindsItAndSoAreItsDevices) {
  SeeFakes("devices=2 compute=10.0 version=13020", "");
  const cuda::ProbeResult result = Probe();
  EXPECT_EQ(result.end, "");
  EXPECT_EQ(result.probe.step(), "");
  EXPECT_EQ(result.probe.driver().problem(), "");
  EXPECT_THAT(result.probe.driver().path(), EndsWith("/libcuda.so.1"));
  EXPECT_EQ(result.probe.driver().version(), 13020);
  ASSERT_EQ(result.probe.devices_size(), 2);
  EXPECT_EQ(result.probe.devices(1).compute_major(), 10);
  EXPECT_TRUE(result.probe.devices(1).stream_memory_operations().done());
  EXPECT_EQ(result.probe.devices(1).stream_memory_operations().problem(), "");
  EXPECT_THAT(result.probe.nccl_ep().path(), EndsWith("/libnccl_ep.so"));
  EXPECT_EQ(result.probe.nccl_ep().version(), 200);
  EXPECT_THAT(result.probe.nccl().problem(), HasSubstr("/none"));
}

TEST_F(CudaProbe, AnOldNcclEpIsRefusedByItsVersionUnlessItsHeaderHasTheAbi) {
  SeeFakes("", "old");
  EXPECT_THAT(Probe().probe.nccl_ep().problem(),
              AllOf(HasSubstr("NCCL EP 0.1.0, and no nccl_ep.h"), HasSubstr("expected 0.2.0")));
  // As a build of the source leaves it, by its soname.
  const std::filesystem::path built = std::filesystem::path(::testing::TempDir()) / "nccl_ep";
  for (const char* folder : {"lib", "include"}) std::filesystem::create_directories(built / folder);
  const std::filesystem::path library = built / "lib/libnccl_ep.so.0";
  std::filesystem::copy_file("tests/fakes/cuda/libnccl_ep.so", library,
                             std::filesystem::copy_options::overwrite_existing);
  setenv("EPD_LIBNCCL_EP", library.c_str(), 1);
  for (const int abi : {1, 2}) {
    std::ofstream(built / "include/nccl_ep.h") << "#define NCCL_EP_API_VERSION " << abi << "\n";
    const std::string problem = Probe().probe.nccl_ep().problem();
    const char* said = abi == 2 ? "" : "NCCL EP 0.1.0 with ABI 1, expected 0.2.0";
    EXPECT_THAT(problem, HasSubstr(said));
    EXPECT_EQ(problem.empty(), abi == 2);
  }
  unsetenv("EPD_LIBNCCL_EP");
}

TEST_F(CudaProbe, AnNcclEpThatIsThereByItsSonameAloneIsFound) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "soname";
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file("tests/fakes/cuda/libnccl_ep.so", folder / "libnccl_ep.so.0",
                             std::filesystem::copy_options::overwrite_existing);
  setenv("LD_LIBRARY_PATH", folder.c_str(), 1);
  const cuda::ProbeResult result = Probe();
  EXPECT_THAT(result.probe.nccl_ep().path(), EndsWith("/soname/libnccl_ep.so.0"));
  EXPECT_EQ(result.probe.nccl_ep().problem(), "");
}

TEST_F(CudaProbe, TheNcclEpThatTheEnvironmentNamesIsTheOneThatIsTried) {
  SeeFakes("", "");
  setenv("EPD_LIBNCCL_EP", "/none/libnccl_ep.so", 1);
  const cuda::ProbeResult result = Probe();
  unsetenv("EPD_LIBNCCL_EP");
  EXPECT_EQ(result.probe.nccl_ep().path(), "");
  EXPECT_THAT(result.probe.nccl_ep().problem(), HasSubstr("/none/libnccl_ep.so"));
}

TEST_F(CudaProbe, AnNcclEpThatEndsItsProcessLeavesWhatWasFoundBefore) {
  const struct {
    const char* how;
    const char* end;
  } cases[] = {{"exit", "exited with status 1"},
               {"abort", "killed by signal 6 (Aborted)"},
               {"throw", "killed by signal 6 (Aborted)"}};
  for (const auto& [how, end] : cases) {
    SeeFakes("", how);
    const cuda::ProbeResult result = Probe();
    EXPECT_EQ(result.end, end) << how;
    EXPECT_EQ(result.probe.step(), "libnccl_ep") << how;
    EXPECT_EQ(result.probe.devices_size(), 1) << how;
  }
}

TEST_F(CudaProbe, ALibraryThatHangsIsEndedInTime) {
  SeeFakes("", "hang");
  const cuda::ProbeResult result = Probe(absl::Seconds(3));
  EXPECT_EQ(result.end, "did not end within 3s");
  EXPECT_EQ(result.probe.step(), "libnccl_ep");
}

TEST_F(CudaProbe, ADriverThatEndsItsProcessSaysAtWhichCall) {
  SeeFakes("abort=cuMemCreate", "");
  const cuda::ProbeResult result = Probe();
  EXPECT_EQ(result.end, "killed by signal 6 (Aborted)");
  EXPECT_EQ(result.probe.step(), "virtual memory on device 0");
  EXPECT_TRUE(result.probe.devices(0).context().done());
}

TEST_F(CudaProbe, AWaitThatNeverEndsDoesNotKeepTheChild) {
  SeeFakes("waits=0", "");
  const cuda::ProbeResult result = Probe();
  EXPECT_EQ(result.end, "");
  EXPECT_THAT(result.probe.devices(0).stream_memory_operations().problem(),
              HasSubstr("did not end"));
}

std::string DoctorOf(const RunningDaemon& daemon, const std::string& flags) {
  const absl::StatusOr<ChildOutput> said =
      RunChild(std::filesystem::absolute("client/cli/epctl"),
               {"--socket=" + daemon.socket_path(), "doctor" + flags}, absl::Seconds(40));
  EXPECT_TRUE(said.ok()) << said.status();
  return said.ok() ? said->output : "";
}

TEST(CudaDoctor, ShowsThisNodesGpusInTheDaemonsEnvironment) {
  SeeFakes("devices=1 vmm=0", "");
  RunningDaemon daemon;
  SeeNoFakes();
  const std::string said = DoctorOf(daemon, "");
  EXPECT_THAT(said, HasSubstr("Fake GPU 0 GPU-01010101-0101-0101-0101-010101010101, compute "
                              "capability 9.0, 132 SMs"));
  EXPECT_THAT(said, HasSubstr("staging is shared by IPC handles"));
  EXPECT_THAT(said, HasSubstr("this machine has what it needs; over several nodes with NCCL"));
}

TEST(CudaDoctor, NamesThePairsOfGpusThatCannotReadEachOther) {
  SeeFakes("devices=3 nopeer=2-1", "");
  RunningDaemon daemon;
  SeeNoFakes();
  EXPECT_THAT(DoctorOf(daemon, ""),
              AllOf(HasSubstr("cuda peer access"), HasSubstr("none from device to device: 2->1"),
                    HasSubstr("move all their rows by NCCL"), HasSubstr("nvidia-smi topo -p2p r"),
                    HasSubstr("this machine has what it needs")));
  SeeFakes("devices=3", "");
  RunningDaemon other;
  SeeNoFakes();
  EXPECT_THAT(DoctorOf(other, ""), HasSubstr("between all 3 devices"));
}

TEST(CudaDoctor, ACrashOfALibraryIsAFindingAndEpdAndItsWorkerLiveOn) {
  SeeFakes("", "abort");
  RunningDaemon daemon;
  SeeNoFakes();
  const pid_t worker = daemon.worker_pid();
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(DoctorOf(daemon, ""),
                AllOf(HasSubstr("cuda probe"), HasSubstr("(Aborted) at libnccl_ep"),
                      HasSubstr("Fake GPU 0")));
  }
  EXPECT_EQ(daemon.worker_pid(), worker);
  EXPECT_THAT(daemon.Log(), Not(HasSubstr("worker ended")));
}

TEST(CudaDoctor, ADaemonThatEndsWhileTheProbeHangsEndsInTime) {
  SeeFakes("hang=cuInit", "");
  RunningDaemon daemon;
  SeeNoFakes();
  RunChild("/bin/sh",
           {"-c", std::filesystem::absolute("client/cli/epctl").string() +
                      " --socket=" + daemon.socket_path() + " doctor > /dev/null 2>&1 &"},
           absl::Seconds(20))
      .IgnoreError();
  const std::string children =
      absl::StrFormat("/proc/%d/task/%d/children", daemon.pid(), daemon.pid());
  EXPECT_TRUE(Eventually(10, [&] {
    std::ifstream file(children);
    int64_t worker = 0, prober = 0;
    return static_cast<bool>(file >> worker >> prober);
  })) << "the probing child is there";
}

}  // namespace
}  // namespace epd::testing
