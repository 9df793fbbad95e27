// Goal: who wants fresh figures gets them as soon as all workers have answered, and waits no longer
// than promised for one that does not.
#include "daemon/node/workers/fresh_figures.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace epd {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const absl::Time kNow = absl::UnixEpoch();
constexpr absl::Duration kTick = absl::Milliseconds(1);

class FreshFiguresTest : public testing::Test {
 protected:
  std::function<void()> Note(int number) {
    return [this, number] { ran_.push_back(number); };
  }

  absl::Time answered_ = absl::InfinitePast();  // When the only worker last answered.
  int asked_ = 0;
  std::vector<int> ran_;
  FreshFigures figures_{
      {[this](absl::Time) { ++asked_; }, [this](absl::Time since) { return answered_ < since; }}};
};

TEST_F(FreshFiguresTest, WorkRunsAtOnceWhereNobodyOwesAnAnswer) {
  answered_ = kNow;
  figures_.Then(kNow, Note(1));
  EXPECT_EQ(asked_, 1);
  EXPECT_THAT(ran_, ElementsAre(1));
  EXPECT_EQ(figures_.NextDeadline(), absl::InfiniteFuture());
}

TEST_F(FreshFiguresTest, AnAnswerEndsTheWaitOfThoseWhoAskedBeforeIt) {
  figures_.Then(kNow, Note(1));
  figures_.Then(kNow + 2 * kTick, Note(2));
  figures_.Tick(kNow + 3 * kTick);
  EXPECT_THAT(ran_, IsEmpty());
  answered_ = kNow + kTick;
  figures_.Tick(kNow + 3 * kTick);
  EXPECT_THAT(ran_, ElementsAre(1));
  answered_ = kNow + 4 * kTick;
  figures_.Tick(kNow + 4 * kTick);
  EXPECT_THAT(ran_, ElementsAre(1, 2));
}

TEST_F(FreshFiguresTest, AWorkerThatDoesNotAnswerIsWaitedForAsLongAsPromised) {
  figures_.Then(kNow, Note(1));
  EXPECT_EQ(figures_.NextDeadline(), kNow + FreshFigures::kPatience);
  figures_.Tick(kNow + FreshFigures::kPatience - kTick);
  EXPECT_THAT(ran_, IsEmpty());
  figures_.Tick(kNow + FreshFigures::kPatience);
  EXPECT_THAT(ran_, ElementsAre(1));
}

TEST_F(FreshFiguresTest, AtTheEndAllThatWaitsRuns) {
  figures_.Then(kNow, Note(1));
  figures_.Then(kNow, Note(2));
  figures_.FinishAll();
  EXPECT_THAT(ran_, ElementsAre(1, 2));
}

}  // namespace
}  // namespace epd
