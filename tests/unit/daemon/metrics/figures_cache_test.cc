// Goal: scrapers cost the control thread one question a second, and get the last figures while it does not answer.
#include "daemon/metrics/figures_cache.h"

#include <gtest/gtest.h>

#include <thread>
#include <utility>
#include <vector>

namespace epd {
namespace {

v1::GetFiguresResponse Numbered(uint32_t number) {
  v1::GetFiguresResponse figures;
  figures.mutable_status()->set_num_sessions(number);
  return figures;
}

TEST(FiguresCacheTest, OneQuestionServesAllWhoAskSoonAfter) {
  uint32_t num_asked = 0;
  FiguresCache cache([&](FiguresCache::Done done) { return done(Numbered(++num_asked)), true; },
                     {.fresh = absl::Hours(1), .patience = absl::Hours(1)});
  for (int i = 0; i < 3; ++i) {
    const FiguresCache::Answer answer = cache.Get();
    EXPECT_EQ(answer.figures->status().num_sessions(), 1u);
    EXPECT_FALSE(answer.late);
  }
  EXPECT_EQ(num_asked, 1u);
}

TEST(FiguresCacheTest, OldFiguresAreReplaced) {
  uint32_t num_asked = 0;
  FiguresCache cache([&](FiguresCache::Done done) { return done(Numbered(++num_asked)), true; },
                     {.fresh = absl::ZeroDuration(), .patience = absl::Hours(1)});
  cache.Get();
  EXPECT_EQ(cache.Get().figures->status().num_sessions(), 2u);
}

TEST(FiguresCacheTest, WhileNobodyAnswersTheLastFiguresServeAndNobodyIsAskedAgain) {
  std::vector<FiguresCache::Done> open;
  FiguresCache cache([&](FiguresCache::Done done) { return open.push_back(std::move(done)), true; },
                     {.fresh = absl::ZeroDuration(), .patience = absl::Milliseconds(1)});
  EXPECT_EQ(cache.Get().figures, nullptr);
  open[0](Numbered(7));
  for (int i = 0; i < 3; ++i) {
    const FiguresCache::Answer answer = cache.Get();
    EXPECT_EQ(answer.figures->status().num_sessions(), 7u);
    EXPECT_TRUE(answer.late);
  }
  EXPECT_EQ(open.size(), 2u);
}

TEST(FiguresCacheTest, AnAnswerWakesWhoWaits) {
  std::thread answerer;
  FiguresCache cache(
      [&](FiguresCache::Done done) {
        answerer = std::thread([done = std::move(done)] { done(Numbered(5)); });
        return true;
      },
      {.fresh = absl::Hours(1), .patience = absl::Hours(1)});
  EXPECT_EQ(cache.Get().figures->status().num_sessions(), 5u);
  answerer.join();
}

TEST(FiguresCacheTest, AnEndingDaemonIsNotWaitedFor) {
  FiguresCache cache([](const FiguresCache::Done&) { return false; },
                     {.fresh = absl::ZeroDuration(), .patience = absl::Hours(1)});
  const FiguresCache::Answer answer = cache.Get();
  EXPECT_EQ(answer.figures, nullptr);
  EXPECT_TRUE(answer.late);
}

}  // namespace
}  // namespace epd
