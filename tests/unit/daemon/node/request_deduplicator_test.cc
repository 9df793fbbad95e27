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
  RequestDeduplicator book;
  const auto first = book.Begin("drain/1", Note("a"));
  ASSERT_TRUE(first.has_value());
  EXPECT_FALSE(book.Begin("drain/1", Note("b")).has_value());
  EXPECT_THAT(told_, IsEmpty());
  book.Finish(*first, {absl::AbortedError("late"), GroupId(7)});
  book.Finish(*first, {absl::OkStatus(), GroupId(8)});
  EXPECT_THAT(told_, ElementsAre("a:late:7", "b:late:7"));
}

TEST_F(RequestDeduplicatorTest, FinishedOrderIsAnsweredAtOnce) {
  RequestDeduplicator book;
  book.Finish(*book.Begin("create/1", Note("a")), {absl::OkStatus(), GroupId(7)});
  EXPECT_FALSE(book.Begin("create/1", Note("b")).has_value());
  EXPECT_THAT(told_, ElementsAre("a::7", "b::7"));
}

TEST_F(RequestDeduplicatorTest, OrdersOfDifferentMethodsOrWithoutKeyNeverMeet) {
  RequestDeduplicator book;
  EXPECT_TRUE(book.Begin("create/1", Note("a")).has_value());
  EXPECT_TRUE(book.Begin("drain/1", Note("b")).has_value());
  EXPECT_TRUE(book.Begin("", Note("c")).has_value());
  EXPECT_TRUE(book.Begin("", Note("d")).has_value());
}

TEST_F(RequestDeduplicatorTest, OldAnswersAreForgottenAndOpenOrdersAreNot) {
  RequestDeduplicator book(/*max_finished=*/1);
  const auto open = book.Begin("close/open", Note("open"));
  book.Finish(*book.Begin("close/1", Note("a")), {absl::OkStatus(), GroupId(1)});
  book.Finish(*book.Begin("close/2", Note("b")), {absl::OkStatus(), GroupId(2)});
  EXPECT_TRUE(book.Begin("close/1", Note("c")).has_value());
  EXPECT_FALSE(book.Begin("close/2", Note("d")).has_value());
  book.Finish(*open, {absl::OkStatus(), GroupId(3)});
  EXPECT_THAT(told_, ElementsAre("a::1", "b::2", "d::2", "open::3"));
}

TEST_F(RequestDeduplicatorTest, TheEndAnswersWhatIsOpenAndNothingElse) {
  RequestDeduplicator book;
  book.Finish(*book.Begin("x/1", Note("a")), {absl::OkStatus(), GroupId(1)});
  ASSERT_TRUE(book.Begin("x/2", Note("b")).has_value());
  book.FinishAll(absl::UnavailableError("end"));
  EXPECT_THAT(told_, ElementsAre("a::1", "b:end:0"));
}

}  // namespace
}  // namespace epd
