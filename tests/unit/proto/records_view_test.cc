// Goal: a session's claims stand in a block of its own whatever the number of slots, and records that do not say what their
// size says are not read.
#include "proto/epd/v1/records_view.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <functional>

namespace epd::shm {
namespace {

class RecordsViewTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  ~RecordsViewTest() override { munmap(memory_, bytes_); }

  const uint64_t bytes_ = RecordsView::BytesFor(GetParam());
  void* const memory_ =
      mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  RecordsView view_ = RecordsView::Create(memory_, GetParam());
};
INSTANTIATE_TEST_SUITE_P(Sizes, RecordsViewTest,
                         ::testing::Values(256u, 257u, 1000u, limits::kMaxOpSlots));

TEST_P(RecordsViewTest, BlocksAreWholePagesAndLieBesideEachOther) {
  EXPECT_GE(view_.num_slots(), GetParam());
  EXPECT_EQ(view_.block(0).size_bytes() % 4096, 0u);
  EXPECT_EQ(view_.block(1).data(), view_.block(0).data() + view_.num_slots());
  const auto last = view_.block(kMaxSessions - 1);
  EXPECT_EQ(static_cast<void*>(last.data() + last.size()),
            static_cast<void*>(view_.operations().data()));
  EXPECT_EQ(static_cast<void*>(view_.operations().data() + kMaxOperations),
            static_cast<void*>(static_cast<std::byte*>(memory_) + bytes_));
  EXPECT_EQ(&view_.operation(kMaxOperations + 5), &view_.operations()[5]);
}

TEST_P(RecordsViewTest, AReaderFindsThemByTheirHeader) {
  RecordsView read;
  ASSERT_TRUE(RecordsView::Open(memory_, bytes_, &read));
  EXPECT_EQ(read.num_slots(), view_.num_slots());
  EXPECT_EQ(read.block(3).data(), view_.block(3).data());
  EXPECT_EQ(read.operations().data(), view_.operations().data());
}

TEST_P(RecordsViewTest, OtherVersionsAndSizesAreNotRead) {
  RecordsView read;
  EXPECT_FALSE(RecordsView::Open(memory_, bytes_ - 1, &read));
  EXPECT_FALSE(RecordsView::Open(memory_, 100, &read));
  auto& header = *static_cast<RecordsHeader*>(memory_);
  const std::function<void()> changes[] = {
      [&] { header.magic = 1; },
      [&] { header.version = 1; },
      [&] { header.slots_per_session = 0; },
      [&] { header.slots_per_session += 1; },
      [&] { header.slots_per_session += kSlotsPerSession; },
      [&] { header.max_sessions = 1; },
      [&] { header.max_operations = 1; },
  };
  for (const auto& change : changes) {
    RecordsView::Create(memory_, GetParam());
    change();
    EXPECT_FALSE(RecordsView::Open(memory_, bytes_, &read));
  }
}

}  // namespace
}  // namespace epd::shm
