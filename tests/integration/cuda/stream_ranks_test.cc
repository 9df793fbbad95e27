// Goal: the program with which tests/gpu tries streams on real GPUs passes on fake ones with ranks in one process and in
// several, by each of the ways that rows go between GPUs, and fails when the worker does not do its work.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

#include "daemon/backend/child_output.h"
#include "tests/integration/cuda/on_cuda.h"

namespace epd::testing {
namespace {

using ::testing::HasSubstr;

using StreamRanks = OnFakeGpu;

ChildOutput RunRanks(const RunningDaemon& daemon, const std::string& processes,
                     const std::string& more) {
  const auto said =
      RunChild(std::filesystem::absolute("tests/integration/cuda/stream_ranks"),
               {"--socket=" + daemon.socket_path(), "--ranks=4", processes, "--steps=3", more},
               absl::Seconds(120));
  EXPECT_TRUE(said.ok()) << said.status();
  return said.ok() ? *said : ChildOutput{};
}

TEST_F(StreamRanks, PassInOneProcessAndInSeveral) {
  RunningDaemon daemon({"--cuda_staging_bytes=256MiB"});
  for (const char* processes : {"--processes=1", "--processes=2", "--processes=4"}) {
    for (const char* executor : {"--executor=worker", "--executor=client"}) {
      const ChildOutput said = RunRanks(daemon, processes, executor);
      EXPECT_EQ(said.end, "") << processes << executor << said.complaints;
      EXPECT_THAT(said.output, HasSubstr("\"passed\": true"));
    }
  }
}

// tests/gpu/parts.py asks for both where there are several, and looks for these words.
TEST_F(StreamRanks, PassOnSeveralGpusDirectlyAndByNccl) {
  setenv("EPD_FAKE_CUDA", "devices=2", 1);
  for (const bool direct : {true, false}) {
    if (!direct) setenv("EPD_CUDA_PEER_ACCESS", "no", 1);
    RunningDaemon daemon({"--cuda_staging_bytes=256MiB"});
    unsetenv("EPD_CUDA_PEER_ACCESS");
    const ChildOutput said = RunRanks(daemon, "--processes=2", "--gpus=2");
    EXPECT_EQ(said.end, "") << said.complaints;
    EXPECT_THAT(said.output, HasSubstr("\"passed\": true"));
    EXPECT_THAT(daemon.Log(), HasSubstr(direct ? "rows go directly between the node's devices"
                                               : "rows go by NCCL between the node's devices"));
  }
}

// Megatron sets 1. What stands still without the refusal is the first step.
TEST_F(StreamRanks, OfOneProcessWithOneHardwareQueueAreRefusedByNameAndOfSeveralPass) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
  RunningDaemon daemon({"--cuda_staging_bytes=256MiB"});
  const ChildOutput said = RunRanks(daemon, "--processes=1", "--executor=worker");
  EXPECT_EQ(said.end, "exited with status 1");
  EXPECT_THAT(said.complaints,
              HasSubstr("CUDA_DEVICE_MAX_CONNECTIONS: got 1, expected at least 4 for 2 ranks"));
  const ChildOutput apart = RunRanks(daemon, "--processes=4", "--executor=worker");
  EXPECT_EQ(apart.end, "") << apart.complaints;
  unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
}

TEST_F(StreamRanks, OnAGpuThatOneProcessAloneMayHaveAreToldSo) {
  setenv("EPD_FAKE_CUDA", "mode=3", 1);
  RunningDaemon daemon({"--cuda_staging_bytes=256MiB"});
  const ChildOutput said = RunRanks(daemon, "--processes=2", "--executor=worker");
  EXPECT_EQ(said.end, "exited with status 1");
  EXPECT_THAT(said.complaints, HasSubstr("compute mode EXCLUSIVE_PROCESS"));
  EXPECT_THAT(said.complaints, HasSubstr("-c DEFAULT"));
}

TEST_F(StreamRanks, FailWhereNoGpuIsServed) {
  RunningDaemon daemon({"--cuda_staging_bytes=0"});
  const ChildOutput said = RunRanks(daemon, "--processes=2", "--executor=worker");
  EXPECT_EQ(said.end, "exited with status 1");
  EXPECT_THAT(said.complaints, HasSubstr("cuda_staging_bytes=0"));
}

}  // namespace
}  // namespace epd::testing
