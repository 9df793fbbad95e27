// Goal: making a unique id never holds up the exec thread, and has a deadline.
#include "daemon/backend/unique_id_maker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <future>
#include <memory>

#include "tests/fakes/failing_threads.h"

namespace epd {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const absl::Time kNow = absl::UnixEpoch();

bool WaitReady(const UniqueIdMaker& maker) {
  pollfd watched = {.fd = maker.ready_fd(), .events = POLLIN, .revents = 0};
  return poll(&watched, 1, 10'000) == 1;
}

TEST(UniqueIdMaker, HandsTheIdOverWithItsRequest) {
  UniqueIdMaker maker([] { return absl::StatusOr<std::string>("secret"); });
  ASSERT_TRUE(maker.Start().ok());
  maker.Request({.group_id = 7, .epoch = 2}, kNow);
  ASSERT_TRUE(WaitReady(maker));
  const auto made = maker.TakeMade(kNow);
  ASSERT_THAT(made, SizeIs(1));
  EXPECT_EQ(made[0].request.group_id, 7u);
  EXPECT_EQ(made[0].request.epoch, 2u);
  EXPECT_EQ(made[0].unique_id, "secret");
  EXPECT_EQ(maker.next_deadline(), absl::InfiniteFuture());
}

TEST(UniqueIdMaker, AnHangingMakerIsLateAndItsResultIsDropped) {
  auto release = std::make_shared<std::promise<void>>();
  std::shared_future<void> released = release->get_future().share();
  UniqueIdMaker maker(
      [released] {
        released.wait();
        return absl::StatusOr<std::string>("late");
      },
      absl::Seconds(5));
  ASSERT_TRUE(maker.Start().ok());
  maker.Request({.group_id = 7, .epoch = 2}, kNow);
  EXPECT_EQ(maker.next_deadline(), kNow + absl::Seconds(5));
  EXPECT_THAT(maker.TakeMade(kNow + absl::Seconds(5) - absl::Nanoseconds(1)), IsEmpty());
  const auto late = maker.TakeMade(kNow + absl::Seconds(5));
  ASSERT_THAT(late, SizeIs(1));
  EXPECT_EQ(late[0].status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(late[0].status.message()), HasSubstr("5s"));
  release->set_value();
  ASSERT_TRUE(WaitReady(maker));
  EXPECT_THAT(maker.TakeMade(kNow + absl::Seconds(6)), IsEmpty());
}

TEST(UniqueIdMaker, AnErrorIsHandedOver) {
  UniqueIdMaker maker([]() -> absl::StatusOr<std::string> { return absl::UnavailableError("no"); });
  ASSERT_TRUE(maker.Start().ok());
  maker.Request({}, kNow);
  ASSERT_TRUE(WaitReady(maker));
  EXPECT_EQ(maker.TakeMade(kNow)[0].status, absl::UnavailableError("no"));
}

TEST(UniqueIdMaker, AThreadThatCannotBeHadIsTheRequestsError) {
  UniqueIdMaker maker([] { return absl::StatusOr<std::string>("secret"); });
  ASSERT_TRUE(maker.Start().ok());
  epd::testing::g_threads_left = 0;
  maker.Request({.group_id = 7, .epoch = 2}, kNow);
  epd::testing::g_threads_left = -1;
  ASSERT_TRUE(WaitReady(maker));
  const auto made = maker.TakeMade(kNow);
  ASSERT_THAT(made, SizeIs(1));
  EXPECT_TRUE(absl::IsResourceExhausted(made[0].status));
  EXPECT_THAT(std::string(made[0].status.message()), HasSubstr("no thread 'epd-unique-id'"));
}

}  // namespace
}  // namespace epd
