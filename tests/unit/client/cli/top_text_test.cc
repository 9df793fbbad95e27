// Goal: top says what each group does now, the busiest first, and whom it waits for.
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <string>

#include "client/cli/printers/tables.h"

namespace epd::cli {
namespace {

using ::testing::HasSubstr;
using Figures = epd::v1::GetFiguresResponse;

Figures Parse(const std::string& text) {
  Figures figures;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &figures));
  return figures;
}

const char kThen[] = R"pb(
  status {
    node: "n1"
    version: "1"
    health: HEALTH_OK
    incarnation: 7
    num_sessions: 2
    pool_committed_bytes: 1048576
    pool_bytes: 4194304
    up { seconds: 100 }
  }
  groups {
    group_id: 1
    spec { name: "a" }
    state: GROUP_STATE_READY
    num_operations: 1000
    bytes_moved: 4096
  }
  groups {
    group_id: 2
    spec { name: "b" }
    state: GROUP_STATE_READY
    num_operations: 10
  }
  staging { group_ids: 1 committed_bytes: 1048576 }
)pb";

Figures Later() {
  Figures figures = Parse(kThen);
  figures.mutable_status()->mutable_up()->set_seconds(104);
  figures.mutable_groups(0)->set_num_operations(1002);
  figures.mutable_groups(0)->set_bytes_moved(4096 + 4 * 2048);
  figures.mutable_groups(1)->set_num_operations(110);
  auto& rank = *figures.mutable_groups(1)->add_ranks();
  rank.set_rank(3);
  rank.set_host("h");
  rank.set_pid(99);
  rank.set_phase("absent_in_announce");
  rank.mutable_phase_age()->set_seconds(75);
  return figures;
}

TEST(TopTextTest, RatesAreThoseBetweenTwoAnswersTheBusiestFirst) {
  const Figures then = Parse(kThen);
  EXPECT_EQ(TopText(Later(), &then, 'o'),
            "n1: ok, epd 1, up 1m44s; 2 sessions; staging 1.0 MiB of 4.0 MiB\n"
            "\n"
            "GROUP  STATE  OPS/S  FAILED/S  STAGED/S  OPEN  STAGING  WAITS FOR          SINCE\n"
            "b      ready   25.0       0.0       0 B     0      0 B  rank 3 (h pid 99)  1m15s\n"
            "a      ready    0.5       0.0   2.0 KiB     0  1.0 MiB  -                      -\n");
}

TEST(TopTextTest, WithoutAnEarlierAnswerOfTheSameEpdThereAreTotals) {
  Figures of_another_epd = Parse(kThen);
  of_another_epd.mutable_status()->set_incarnation(6);
  EXPECT_EQ(TopText(Later(), nullptr, 'o'), TopText(Later(), &of_another_epd, 'o'));
  EXPECT_THAT(TopText(Later(), nullptr, 'o'), HasSubstr("a      ready  1,002"));
}

TEST(TopTextTest, AKeyChangesTheOrder) {
  const Figures then = Parse(kThen);
  const auto first = [&](char order) {
    const std::string text = TopText(Later(), &then, order);
    return text.find("\na ") < text.find("\nb ") ? 'a' : 'b';
  };
  EXPECT_EQ(first('b'), 'a');
  EXPECT_EQ(first('s'), 'a');
  EXPECT_EQ(first('n'), 'a');
  EXPECT_EQ(first('w'), 'b');
  EXPECT_EQ(first('?'), 'b');
}

}  // namespace
}  // namespace epd::cli
