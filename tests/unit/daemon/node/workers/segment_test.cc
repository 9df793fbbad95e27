// Goal: segments are whole, sealed, and never a SIGBUS for those who map them.
#include "daemon/node/workers/segment.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace epd {
namespace {

using testing::HasSubstr;

TEST(SegmentTest, SlotsSayWhatTheyAre) {
  const auto segment = CreateSlots(7, 9);
  ASSERT_TRUE(segment.ok()) << segment.status();
  const shm::SlotsHeader& header = Slots(*segment).header();
  EXPECT_EQ(header.magic, shm::kSlotsMagic);
  EXPECT_EQ(header.segment_bytes, sizeof(shm::SlotsSegment));
  EXPECT_EQ(header.session_id, 7u);
  EXPECT_EQ(header.incarnation, 9u);
  EXPECT_EQ(Slots(*segment).word(shm::kSlotsPerSession - 1), 0u);
}

TEST(SegmentTest, RecordsSayWhatTheyAre) {
  const auto segment = CreateRecords();
  ASSERT_TRUE(segment.ok()) << segment.status();
  EXPECT_EQ(Records(*segment).header.magic, shm::kRecordsMagic);
  EXPECT_EQ(Records(*segment).header.max_operations, shm::kMaxOperations);
}

TEST(SegmentTest, NobodyCanShrinkOrGrowItAndAllPagesExist) {
  const auto segment = SharedSegment::Create("test", 1 << 20);
  ASSERT_TRUE(segment.ok()) << segment.status();
  const int fd = segment->fd()->get();
  EXPECT_NE(ftruncate(fd, 0), 0);
  EXPECT_NE(ftruncate(fd, 2 << 20), 0);
  EXPECT_NE(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
  struct stat file;
  ASSERT_EQ(fstat(fd, &file), 0);
  EXPECT_GE(file.st_blocks * 512, 1 << 20);
}

TEST(SegmentTest, DescriptorOutlivesTheMappingWhileASendIsQueued) {
  std::shared_ptr<UniqueFd> queued;
  {
    const auto segment = SharedSegment::Create("test", 4096);
    ASSERT_TRUE(segment.ok());
    queued = segment->fd();
  }
  EXPECT_EQ(fcntl(queued->get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

TEST(SegmentTest, FullQuotaIsAnErrorThatSaysWhatToDo) {
  signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 4096;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto segment = SharedSegment::Create("test", 1 << 20);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_TRUE(absl::IsResourceExhausted(segment.status()));
  EXPECT_THAT(std::string(segment.status().message()), HasSubstr("1048576 bytes: fallocate"));
}

}  // namespace
}  // namespace epd
