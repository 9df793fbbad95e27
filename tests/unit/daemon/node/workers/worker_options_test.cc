// Goal: a worker is started with what the settings say of it, and groups are served on exactly the
// GPUs that they allow.
#include "daemon/node/workers/worker_options.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace epd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Settings Parsed(const std::vector<std::string>& args) {
  const absl::StatusOr<ParsedSettings> parsed =
      ParseSettings(args, {"a7", "/run/epd", "/opt/epd/bin", uint64_t{8} << 30});
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() ? parsed->settings : Settings();
}

ServedGpus Served(const std::vector<std::string>& args) {
  EventLoop loop;
  const WorkerTable none({loop, [](NodeEvent) {}, {}, nullptr});
  return FindServedGpus(Parsed(args), none);
}

TEST(MakeWorkerOptionsTest, AGpusWorkerIsToldItsDeviceAndTheCpusIsNot) {
  const Settings settings = Parsed({"--worker_stuck=7s", "--node=b8"});
  const WorkerSupervisor::Options gpu = MakeWorkerOptions(settings, {}, 42, WorkerName{3});
  EXPECT_EQ(gpu.name, "cuda:3");
  EXPECT_EQ(gpu.hello.cuda_device(), 3);
  EXPECT_EQ(gpu.hello.incarnation(), 42u);
  EXPECT_EQ(gpu.hello.node(), "b8");
  EXPECT_EQ(gpu.stuck, absl::Seconds(7));
  EXPECT_FALSE(MakeWorkerOptions(settings, {}, 42, kCpuWorker).hello.has_cuda_device());
}

TEST(FindServedGpusTest, AListIsServedFromTheStartAndNothingElse) {
  const ServedGpus gpus = Served({"--cuda_devices=2,0"});
  EXPECT_THAT(gpus.workers, ElementsAre(WorkerName{0}, WorkerName{2}));
  EXPECT_FALSE(gpus.others);
}

TEST(FindServedGpusTest, OnDemandAnyIsServedAndNoneAtFirst) {
  const ServedGpus gpus = Served({"--cuda_devices=auto"});
  EXPECT_THAT(gpus.workers, IsEmpty());
  EXPECT_TRUE(gpus.others);
  EXPECT_THAT(gpus.why_none, IsEmpty());
}

TEST(FindServedGpusTest, WhereNoneIsServedTheSettingIsNamed) {
  EXPECT_THAT(Served({"--cuda_devices=none"}).why_none, HasSubstr("cuda_devices=none"));
  EXPECT_THAT(Served({"--cuda_staging_bytes=0"}).why_none, HasSubstr("cuda_staging_bytes=0"));
}

}  // namespace
}  // namespace epd
