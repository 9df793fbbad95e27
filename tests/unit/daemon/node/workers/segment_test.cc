// Goal: segments are whole, sealed, and cost what is used of them.
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
  for (const uint64_t features : {uint64_t{0}, features::kTakesManySlots}) {
    const auto layout = shm::SlotsLayout::For(features, 1000);
    const auto segment = CreateSlots(7, 9, layout);
    ASSERT_TRUE(segment.ok()) << segment.status();
    const shm::SlotsView view = shm::SlotsView::Of(segment->data(), layout);
    const shm::SlotsHeader& header = view.header();
    EXPECT_EQ(header.magic, shm::kSlotsMagic);
    EXPECT_EQ(header.segment_bytes, layout.bytes());
    EXPECT_EQ(header.session_id, 7u);
    EXPECT_EQ(header.incarnation, 9u);
    EXPECT_EQ(view.num_slots(), features == 0 ? shm::kSlotsPerSession : 1000u);
    EXPECT_EQ(segment->bytes(), layout.bytes());
    EXPECT_EQ(segment->committed_bytes(), sizeof(shm::SlotsHeader));
    view.slot(999 % view.num_slots()).failed = 1;
    EXPECT_EQ(segment->committed_bytes(), sizeof(shm::SlotsHeader) + sizeof(shm::Slot));
  }
}

TEST(SegmentTest, RecordsSayWhatTheyAre) {
  for (const uint32_t slots : {limits::kMinOpSlots, limits::kMaxOpSlots}) {
    const auto segment = CreateRecords(slots);
    ASSERT_TRUE(segment.ok()) << segment.status();
    EXPECT_EQ(Records(*segment).header().magic, shm::kRecordsMagic);
    EXPECT_EQ(Records(*segment).header().max_operations, shm::kMaxOperations);
    EXPECT_EQ(Records(*segment).num_slots(), slots);
    EXPECT_LE(segment->committed_bytes(), sizeof(shm::RecordsSegment));
    EXPECT_TRUE(AdoptRecords(segment->fd(), slots).ok());
    EXPECT_TRUE(absl::IsDataLoss(AdoptRecords(segment->fd(), slots + 256).status()));
  }
}

TEST(SegmentTest, ASessionFindsNoClaimOfTheOneBeforeAndOthersKeepTheirs) {
  for (const uint32_t slots : {limits::kMinOpSlots, limits::kMaxOpSlots}) {
    const auto segment = CreateRecords(slots);
    ASSERT_TRUE(segment.ok()) << segment.status();
    const shm::RecordsView records = Records(*segment);
    for (const uint32_t block : {6u, 7u, 8u}) {
      for (const uint32_t slot : {0u, slots - 1}) records.block(block)[slot].claim = 5;
    }
    ClearRecordsOf(*segment, 7);
    for (const uint32_t slot : {0u, slots - 1}) {
      EXPECT_EQ(records.block(6)[slot].claim, 5u);
      EXPECT_EQ(records.block(7)[slot].claim, 0u);
      EXPECT_EQ(records.block(8)[slot].claim, 5u);
    }
  }
}

TEST(SegmentTest, NobodyCanShrinkOrGrowItAndAllPagesExist) {
  const auto segment = SharedSegment::Create("test", 1 << 20, {{0, 1 << 20}});
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
    const auto segment = SharedSegment::Create("test", 4096, {});
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
  const auto segment = SharedSegment::Create("test", 1 << 20, {});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_TRUE(absl::IsResourceExhausted(segment.status()));
  EXPECT_THAT(std::string(segment.status().message()), HasSubstr("1048576 bytes: ftruncate"));
}

}  // namespace
}  // namespace epd
