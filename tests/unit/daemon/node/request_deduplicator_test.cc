// Goal: an operator may repeat an order without doing it twice, and is always told the same.
#include "daemon/node/request_deduplicator.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace epd {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class RequestDeduplicatorTest : public testing::Test {
 protected:
  RequestDeduplicator::Done Note(const std::string& who) {
    return [this, who](const RequestDeduplicator::Answer& answer) {
      told_.push_back(who + ":" + std::string(answer.status.message()) + ":" +
                      std::to_string(answer.group.value));
    };
  }
  std::vector<std::string> told_;
};

TEST_F(RequestDeduplicatorTest, RepeatedOrderIsNotGivenAgainAndBothAreToldOnce) {
  RequestDeduplicator book{[] { return 8; }};
  const auto first = book.Begin("drain/1", Note("a"));
  ASSERT_TRUE(first.has_value());
  EXPECT_FALSE(book.Begin("drain/1", Note("b")).has_value());
  EXPECT_THAT(told_, IsEmpty());
  book.Finish(*first, {absl::AbortedError("late"), GroupId(7)});
  book.Finish(*first, {absl::OkStatus(), GroupId(8)});
  EXPECT_THAT(told_, ElementsAre("a:late:7", "b:late:7"));
}

TEST_F(RequestDeduplicatorTest, FinishedOrderIsAnsweredAtOnce) {
  RequestDeduplicator book{[] { return 8; }};
  book.Finish(*book.Begin("create/1", Note("a")), {absl::OkStatus(), GroupId(7)});
  EXPECT_FALSE(book.Begin("create/1", Note("b")).has_value());
  EXPECT_THAT(told_, ElementsAre("a::7", "b::7"));
}

TEST_F(RequestDeduplicatorTest, OrdersOfDifferentMethodsOrWithoutKeyNeverMeet) {
  RequestDeduplicator book{[] { return 8; }};
  EXPECT_TRUE(book.Begin("create/1", Note("a")).has_value());
  EXPECT_TRUE(book.Begin("drain/1", Note("b")).has_value());
  EXPECT_TRUE(book.Begin("", Note("c")).has_value());
  EXPECT_TRUE(book.Begin("", Note("d")).has_value());
}

TEST_F(RequestDeduplicatorTest, OldAnswersAreForgottenAndOpenOrdersAreNot) {
  RequestDeduplicator book{[] { return 2; }};
  const auto open = book.Begin("close/open", Note("open"));
  for (const std::string name : {"1", "2", "3"})
    book.Finish(*book.Begin("close/" + name, Note(name)), {absl::OkStatus(), GroupId(1)});
  EXPECT_FALSE(book.Begin("close/2", Note("again")).has_value());
  const auto forgotten = book.Begin("close/1", Note("anew"));
  ASSERT_TRUE(forgotten.has_value());
  book.Finish(*forgotten, {absl::OkStatus(), GroupId(4)});
  book.Finish(*open, {absl::OkStatus(), GroupId(3)});
  EXPECT_THAT(told_, ElementsAre("1::1", "2::1", "3::1", "again::1", "anew::4", "open::3"));
}

TEST_F(RequestDeduplicatorTest, WhoWaitsIsCountedOnceEachHoweverOftenAnOrderIsRepeated) {
  RequestDeduplicator book{[] { return 2; }};
  const auto open = book.Begin("drain/1", Note("a"));
  EXPECT_FALSE(book.Begin("drain/1", Note("b")).has_value());
  EXPECT_FALSE(book.Begin("drain/1", Note("c")).has_value());
  EXPECT_FALSE(book.Begin("drain/2", Note("d")).has_value());
  ASSERT_EQ(told_.size(), 2u);
  EXPECT_THAT(told_, testing::Each(testing::HasSubstr("its limit (max_orders)")));
  book.Finish(*open, {absl::OkStatus(), GroupId(1)});
  EXPECT_TRUE(book.Begin("drain/2", Note("d")).has_value());
}

TEST_F(RequestDeduplicatorTest, TheEndAnswersWhatIsOpenAndNothingElse) {
  RequestDeduplicator book{[] { return 8; }};
  book.Finish(*book.Begin("x/1", Note("a")), {absl::OkStatus(), GroupId(1)});
  ASSERT_TRUE(book.Begin("x/2", Note("b")).has_value());
  book.FinishAll(absl::UnavailableError("end"));
  EXPECT_THAT(told_, ElementsAre("a::1", "b:end:0"));
}

}  // namespace
}  // namespace epd
