// Goal: a Join goes to the worker of its ranks' device; where that cannot be told, or is not served, it is
// told what there is.
#include "daemon/control/worker_choice.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace epd {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

GroupSpec Spec(const std::string& backend) {
  GroupSpec spec;
  spec.name = "g";
  spec.backend = backend;
  return spec;
}

constexpr WorkerName kFirst{0};
constexpr WorkerName kSecond{1};
const ServedGpus kTwo = {.workers = {kFirst, kSecond}};
const ServedGpus kOnDemand = {.others = true};

TEST(WorkerChoiceTest, GroupsOfTheCpuNeedNoGpu) {
  const ServedGpus none = {.why_none = "there is none"};
  for (const char* backend : {"cpu", "auto"}) {
    EXPECT_THAT(ChooseWorkers(Spec(backend), {"cuda:1"}, none).value(), ElementsAre(kCpuWorker));
    EXPECT_THAT(ChooseWorkers(Spec(backend), {}, kTwo).value(), ElementsAre(kCpuWorker));
  }
}

TEST(WorkerChoiceTest, TheDeviceOfTheRanksIsServedByItsWorker) {
  EXPECT_THAT(ChooseWorkers(Spec("cuda"), {"cuda:1", "cuda:1"}, kTwo).value(),
              ElementsAre(kSecond, kSecond));
  EXPECT_THAT(ChooseWorkers(Spec("cuda"), {"cuda:1", "cuda:0"}, kTwo).value(),
              ElementsAre(kSecond, kFirst));
  EXPECT_THAT(ChooseWorkers(Spec("cuda"), {"cuda:1", "words"}, kTwo).value(), ElementsAre(kSecond));
  EXPECT_THAT(ChooseWorkers(Spec("nccl_ep"), {"cuda:0"}, kTwo).value(), ElementsAre(kFirst));
  EXPECT_THAT(ChooseWorkers(Spec("cuda"), {"cuda:7"}, kOnDemand).value(),
              ElementsAre(WorkerName{7}));
}

TEST(WorkerChoiceTest, AGpuMayBeNamedByTheFirstDigitsOfItsId) {
  const ServedGpus gpus = {.workers = {kFirst, kSecond},
                           .uuids = {{kFirst, "0a1b2c3d4e"}, {kSecond, "0a1b2c3d5f"}}};
  EXPECT_THAT(ChooseWorkers(Spec("cuda"), {"GPU-0A1B2C3D-5f"}, gpus).value(), ElementsAre(kSecond));
}

TEST(WorkerChoiceTest, WhereNoRankSaysTheOnlyOneServesItAndOnDemandTheFirst) {
  EXPECT_THAT(ChooseWorkers(Spec("cuda"), {}, {.workers = {kSecond}}).value(),
              ElementsAre(kSecond));
  EXPECT_THAT(ChooseWorkers(Spec("cuda"), {"some words"}, kOnDemand).value(), ElementsAre(kFirst));
}

void ExpectRefusal(absl::StatusCode code, const std::string& word,
                   const std::vector<std::string>& devices, const ServedGpus& gpus) {
  const absl::Status status = ChooseWorkers(Spec("cuda"), devices, gpus).status();
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("group=g"), HasSubstr(word)));
}

TEST(WorkerChoiceTest, WhatCannotBeServedIsToldWhyAndWhatThereIs) {
  ExpectRefusal(absl::StatusCode::kFailedPrecondition, "what this machine has) [EPD-1402]",
                {"cuda:0"}, {.why_none = "there is none"});
  ExpectRefusal(absl::StatusCode::kFailedPrecondition, "only cuda:0, cuda:1", {"cuda:2"}, kTwo);
  ExpectRefusal(absl::StatusCode::kFailedPrecondition, "GPU-ff", {"GPU-ff"}, kOnDemand);
  ExpectRefusal(absl::StatusCode::kInvalidArgument, "cuda:0, cuda:1 are served here", {}, kTwo);
  ExpectRefusal(absl::StatusCode::kInvalidArgument, "1 of 3 ranks do not say",
                {"cuda:0", "cuda:1", ""}, kTwo);
}

}  // namespace
}  // namespace epd
