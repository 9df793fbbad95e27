// Goal: a worker of a node is asked once for each step of a communicator, and never again in an epoch
// in which it has died.
#include "daemon/control/node/local_communicators.h"

#include <gtest/gtest.h>

namespace epd {
namespace {

constexpr GroupId kGroup{3};
constexpr Incarnation kRun{11};

class LocalCommunicatorsTest : public testing::Test {
 protected:
  LocalCommunicatorsTest() { Start(kRun); }

  void Start(Incarnation run) {
    WorkerStarted started;
    started.report.incarnation = run;
    workers_.Start(started);
  }

  // Of an epoch in which this node's worker makes the id, or is told it.
  GroupView View(uint64_t epoch, const std::string& id) {
    communicators_.Update({{kGroup, {.epoch = Epoch{epoch}, .workers = {kCpuWorker}}}});
    GroupView view;
    view.communicator = kGroup;
    view.epoch = Epoch{epoch};
    view.id_known = !id.empty();
    if (id.empty()) view.id_maker = kCpuWorker;
    view.unique_id = UniqueId(id);
    return view;
  }

  template <typename Effect>
  int NumAsked(GroupView view) {
    communicators_.Advance(view);
    int num_asked = 0;
    for (const NodeEffect& effect : outbox_.TakeEffects())
      num_asked += std::holds_alternative<Effect>(effect) ? 1 : 0;
    return num_asked;
  }

  Outbox outbox_;
  CoordinatorLink link_{NodeOptions{}};
  LocalWorkers workers_{{kCpuWorker}, outbox_};
  LocalCommunicators communicators_{NodeId{"n"}, workers_, link_, outbox_};
};

TEST_F(LocalCommunicatorsTest, EachStepIsAskedForOnce) {
  EXPECT_EQ(NumAsked<MakeUniqueId>(View(1, "")), 1);
  EXPECT_EQ(NumAsked<MakeUniqueId>(View(1, "")), 0);
  EXPECT_EQ(NumAsked<InitCommunicator>(View(1, "id")), 1);
  EXPECT_EQ(NumAsked<InitCommunicator>(View(1, "id")), 0);
  EXPECT_FALSE(communicators_.IsInitialised(kGroup, kCpuWorker, Epoch{1}));
  communicators_.TakeInitialised({kRun, kGroup, Epoch{1}, absl::OkStatus(), "\xab"});
  EXPECT_TRUE(communicators_.IsInitialised(kGroup, kCpuWorker, Epoch{1}));
  EXPECT_EQ(communicators_.IdDigest(kGroup, Epoch{1}), "ab");
}

TEST_F(LocalCommunicatorsTest, AWorkerThatDiedIsAskedForTheNextEpochOnly) {
  EXPECT_EQ(NumAsked<InitCommunicator>(View(1, "id")), 1);
  EXPECT_TRUE(workers_.End({kRun, absl::InternalError("signal 9"), kCpuWorker}));
  communicators_.ForgetWorker(kCpuWorker);
  Start(Incarnation{12});
  EXPECT_EQ(NumAsked<InitCommunicator>(View(1, "id")), 0);
  EXPECT_EQ(NumAsked<InitCommunicator>(View(2, "other id")), 1);
}

TEST_F(LocalCommunicatorsTest, AnIdThatTheNodeHasUsedIsRefusedHere) {
  EXPECT_EQ(NumAsked<InitCommunicator>(View(1, "id")), 1);
  EXPECT_EQ(NumAsked<InitCommunicator>(View(2, "id")), 0);
  NodeReport report;
  communicators_.PutInto(report);
  ASSERT_EQ(report.work.size(), 1u);
  EXPECT_EQ(report.work[0].init_epoch, Epoch{2});
  EXPECT_TRUE(absl::IsAborted(report.work[0].init_status));
}

TEST_F(LocalCommunicatorsTest, AnAnswerOfAnEarlierRunOrEpochIsIgnored) {
  EXPECT_EQ(NumAsked<InitCommunicator>(View(2, "id")), 1);
  communicators_.TakeInitialised({Incarnation{10}, kGroup, Epoch{2}, absl::OkStatus(), "a"});
  communicators_.TakeInitialised({kRun, kGroup, Epoch{1}, absl::OkStatus(), "a"});
  EXPECT_FALSE(communicators_.IsInitialised(kGroup, kCpuWorker, Epoch{2}));
}

}  // namespace
}  // namespace epd
