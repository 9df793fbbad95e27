// Goal: a reader takes the areas of a slots segment from its header, refuses what does not lie in the segment, and says
// of another version which one it is and which ones it reads.
#include "proto/epd/v1/slots_view.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>

namespace epd::shm {
namespace {

class SlotsViewTest : public ::testing::Test {
 protected:
  SlotsViewTest() { SlotsView::Create(segment_.get(), 7, 9); }

  SegmentFault Open(VersionRange reads = kReadVersions, uint64_t bytes = sizeof(SlotsSegment)) {
    return SlotsView::Open(segment_.get(), bytes, reads, &view_);
  }
  SegmentFault OpenVersion(uint32_t version, VersionRange reads = kReadVersions) {
    segment_->header.version = version;
    return Open(reads);
  }
  Area& AreaOf(AreaId id) { return segment_->header.areas[static_cast<uint32_t>(id)]; }
  // Of a header with one change.
  SegmentFault After(const std::function<void()>& change) {
    SlotsView::Create(segment_.get(), 7, 9);
    change();
    return Open();
  }

  const std::unique_ptr<SlotsSegment> segment_ = std::make_unique<SlotsSegment>();
  SlotsView view_;
};

TEST_F(SlotsViewTest, WhatIsCreatedIsFound) {
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(view_.num_slots(), kSlotsPerSession);
  EXPECT_EQ(view_.bytes(), sizeof(SlotsSegment));
  for (const uint32_t slot : {0u, 1u, kSlotsPerSession - 1}) {
    EXPECT_EQ(&view_.slot(slot), &segment_->slots[slot]);
    EXPECT_EQ(&view_.word(slot), &segment_->slots[slot].word);
  }
  EXPECT_EQ(view_.eager_buffers().stride, kEagerBufferBytes);
  EXPECT_EQ(view_.eager_buffers().count, kFewEagerBuffers);
}

TEST_F(SlotsViewTest, EachOtherVersionIsRefusedAndBothAreNamed) {
  const SegmentFault older = OpenVersion(1);
  EXPECT_EQ(older.code, Code::kUnimplemented);
  EXPECT_EQ(older.text,
            "the slots segment is of version 1, this side reads version 2; upgrade the older one");
  EXPECT_EQ(OpenVersion(3).text,
            "the slots segment is of version 3, this side reads version 2; upgrade the older one");
  EXPECT_TRUE(OpenVersion(2).ok());
}

TEST_F(SlotsViewTest, EveryVersionOfARangeIsReadAndNoOther) {
  const VersionRange reads = {.min = 2, .max = 4};
  for (const uint32_t version : {2u, 3u, 4u}) EXPECT_TRUE(OpenVersion(version, reads).ok());
  for (const uint32_t version : {1u, 5u}) {
    EXPECT_EQ(OpenVersion(version, reads).text,
              "the slots segment is of version " + std::to_string(version) +
                  ", this side reads versions 2 to 4; upgrade the older one");
  }
}

TEST_F(SlotsViewTest, ASegmentLaidOutOtherwiseIsReadByItsHeader) {
  // Words in an area of their own, fewer slots, larger eager buffers, and an area that nobody knows yet.
  segment_->header.num_areas = 7;
  segment_->header.areas[6] = {.offset = 0, .stride = 0, .count = 99};
  AreaOf(AreaId::kArmed) = {.offset = 4096 - 16, .stride = 8, .count = 2};
  AreaOf(AreaId::kStreamed) = {.offset = 4096 - 32, .stride = 8, .count = 2};
  AreaOf(AreaId::kUsedGroups) = {.offset = 4096 - 40, .stride = 8, .count = 1};
  AreaOf(AreaId::kSlots) = {.offset = 8192, .stride = 8192, .count = 100};
  AreaOf(AreaId::kWords) = {.offset = 4096, .stride = 16, .count = 100};
  AreaOf(AreaId::kEagerBuffers) = {.offset = 64, .stride = 1 << 20, .count = 4};
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(view_.num_slots(), 100u);
  EXPECT_EQ(view_.OffsetOfSlot(99), 8192u + 99 * 8192);
  EXPECT_EQ(view_.OffsetOfWord(99), 4096u + 99 * 16);
  EXPECT_EQ(&view_.slot(1), &segment_->slots[3]);
  EXPECT_EQ(view_.eager_buffers().offset, 64u);
}

TEST_F(SlotsViewTest, WhereNothingIsSaidOfMarksTheyStandAsEverAndAllSlotsMayBeInUse) {
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(&view_.armed(3), &segment_->header.armed[3]);
  EXPECT_EQ(&view_.streamed(3), &segment_->header.streamed[3]);
  EXPECT_EQ(view_.UsedGroups(), 0xfu);
  view_.UseGroup(1);
  EXPECT_EQ(segment_->header.used_groups, 0u);
  EXPECT_EQ(After([&] { AreaOf(AreaId::kSlots).count = kSlotsPerSession + 1; }).code,
            Code::kDataLoss)
      << "there are no marks for so many";
}

TEST_F(SlotsViewTest, WhatIsOpenedStaysAsItWas) {
  ASSERT_TRUE(Open().ok());
  AreaOf(AreaId::kSlots) = {.offset = ~uint64_t{0}, .stride = ~uint32_t{0}, .count = ~uint32_t{0}};
  EXPECT_EQ(&view_.slot(2), &segment_->slots[2]);
  EXPECT_EQ(view_.num_slots(), kSlotsPerSession);
}

TEST_F(SlotsViewTest, AreasThatDoNotLieInTheSegmentAreRefused) {
  constexpr uint64_t kAll = ~uint64_t{0};
  for (const AreaId id : {AreaId::kSlots, AreaId::kWords}) {
    SCOPED_TRACE(static_cast<uint32_t>(id));
    Area& area = AreaOf(id);
    const std::function<void()> changes[] = {
        [&] { area.count = 0; },
        [&] { area.count = kSlotsPerSession + 1; },
        [&] { area.count = ~uint32_t{0}; },
        [&] { area.stride = 0; },
        [&] { area.stride = 7; },
        [&] { area.stride = ~uint32_t{0}; },
        [&] { area.offset = 0; },
        [&] { area.offset += 1; },
        [&] { area.offset += 4096; },
        [&] { area.offset = sizeof(SlotsSegment); },
        [&] { area.offset = kAll - 63; },
    };
    for (const auto& change : changes) EXPECT_EQ(After(change).code, Code::kDataLoss);
  }
  EXPECT_EQ(After([&] { AreaOf(AreaId::kEagerBuffers).count = 200; }).code, Code::kDataLoss);
  EXPECT_EQ(After([&] { AreaOf(AreaId::kEagerBuffers).stride = 3; }).code, Code::kDataLoss);
  EXPECT_EQ(After([&] { AreaOf(AreaId::kEagerBuffers).offset = kAll; }).code, Code::kDataLoss);
}

TEST_F(SlotsViewTest, AHeaderThatIsNoneIsRefused) {
  SlotsHeader& header = segment_->header;
  EXPECT_EQ(After([&] { header.magic = 1; }).text,
            "no slots segment: it begins with another magic number");
  EXPECT_EQ(After([&] { header.header_bytes = 64; }).code, Code::kDataLoss);
  EXPECT_EQ(After([&] { header.segment_bytes += 1; }).code, Code::kDataLoss);
  EXPECT_EQ(After([&] { header.segment_bytes = 4096; }).code, Code::kDataLoss);
  EXPECT_EQ(After([&] { header.num_areas = 2; }).code, Code::kDataLoss);
  EXPECT_EQ(After([&] { header.num_areas = kMaxAreas + 1; }).code, Code::kDataLoss);
  SlotsView::Create(segment_.get(), 7, 9);
  EXPECT_EQ(Open(kReadVersions, 100).code, Code::kDataLoss);
  EXPECT_EQ(Open(kReadVersions, sizeof(SlotsSegment) - 1).code, Code::kDataLoss);
}

class ManySlotsTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  uint64_t bytes() const { return layout_.bytes(); }
  SlotsHeader& header() { return *reinterpret_cast<SlotsHeader*>(segment_.get()); }
  Area& AreaOf(AreaId id) { return header().areas[static_cast<uint32_t>(id)]; }
  SegmentFault After(const std::function<void()>& change) {
    SlotsView::Create(segment_.get(), 7, 9, layout_);
    change();
    return SlotsView::Open(segment_.get(), bytes(), kReadVersions, &view_);
  }

  const SlotsLayout layout_ = SlotsLayout::For(features::kTakesManySlots, GetParam());
  const std::unique_ptr<std::byte[], decltype(&std::free)> segment_{
      static_cast<std::byte*>(std::aligned_alloc(4096, layout_.bytes())), &std::free};
  SlotsView view_;
};
INSTANTIATE_TEST_SUITE_P(Sizes, ManySlotsTest,
                         ::testing::Values(256u, 257u, 1000u, limits::kMaxOpSlots));

TEST_P(ManySlotsTest, TheirWordsStandByThemselvesSixtyFourToAPage) {
  ASSERT_TRUE(After([] {}).ok());
  ASSERT_EQ(view_.num_slots(), GetParam());
  EXPECT_EQ(view_.bytes(), bytes());
  for (const uint32_t slot : {0u, 63u, 64u, GetParam() - 1}) {
    EXPECT_EQ(view_.OffsetOfWord(slot) / 4096, 1 + slot / 64);
    EXPECT_EQ(view_.OffsetOfSlot(slot), layout_.slots().offset + slot * uint64_t{4096});
    EXPECT_EQ(&view_.word(slot), &SlotsView::Of(segment_.get(), layout_).word(slot));
  }
  EXPECT_GE(view_.OffsetOfSlot(0), view_.OffsetOfWord(GetParam() - 1) + sizeof(uint64_t));
  EXPECT_EQ(view_.OffsetOfSlot(GetParam() - 1) + sizeof(Slot), bytes());
}

// A worker of before goes by the first three areas and these marks.
TEST_P(ManySlotsTest, UpTo256ThoseWhoKnowThreeAreasFindAll) {
  ASSERT_TRUE(After([] {}).ok());
  EXPECT_EQ(&view_.armed(0) == &header().armed[0], GetParam() <= kSlotsPerSession);
  EXPECT_EQ(&view_.streamed(0) == &header().streamed[0], GetParam() <= kSlotsPerSession);
}

TEST_P(ManySlotsTest, OnlyGroupsThatTheClientUsesAreLookedAt) {
  ASSERT_TRUE(After([&] { header().used_groups = 0; }).ok());
  uint32_t seen = 0;
  view_.ForEachUsedSlot([&](uint32_t) { ++seen; });
  EXPECT_EQ(seen, 0u);
  const uint32_t last = (GetParam() - 1) / kSlotsOfGroup;
  view_.UseGroup(last);
  view_.ForEachUsedSlot([&](uint32_t slot) {
    EXPECT_EQ(slot / kSlotsOfGroup, last);
    EXPECT_LT(slot, GetParam());
    ++seen;
  });
  EXPECT_EQ(seen, GetParam() - last * kSlotsOfGroup);
  header().used_groups = ~uint64_t{0};  // A client writes what it likes.
  seen = 0;
  view_.ForEachUsedSlot([&](uint32_t slot) {
    EXPECT_LT(slot, GetParam());
    ++seen;
  });
  EXPECT_EQ(seen, GetParam());
}

TEST_P(ManySlotsTest, MarksThatDoNotLieInTheSegmentAreRefused) {
  for (const AreaId id : {AreaId::kArmed, AreaId::kStreamed, AreaId::kUsedGroups}) {
    SCOPED_TRACE(static_cast<uint32_t>(id));
    Area& area = AreaOf(id);
    const std::function<void()> changes[] = {
        [&] { area.count += 1; },       [&] { area.count -= 1; },
        [&] { area.stride = 16; },      [&] { area.offset += 4; },
        [&] { area.offset = bytes(); }, [&] { area.offset = ~uint64_t{7}; },
    };
    for (const auto& change : changes) EXPECT_EQ(After(change).code, Code::kDataLoss);
  }
  EXPECT_EQ(After([&] { AreaOf(AreaId::kSlots).count = limits::kMaxOpSlots + 1; }).code,
            Code::kDataLoss);
}

// Of a client that does not say that it takes more.
TEST(SlotsLayoutTest, WhoKnowsNoOtherLayoutGetsTheOneOfBefore) {
  const SlotsLayout before = SlotsLayout::For(/*client_features=*/1, limits::kMaxOpSlots);
  EXPECT_EQ(before.num_slots, kSlotsPerSession);
  EXPECT_EQ(before.bytes(), sizeof(SlotsSegment));
  EXPECT_EQ(SlotsLayout::For(features::kTakesManySlots, 1).num_slots, limits::kMinOpSlots);
  EXPECT_EQ(SlotsLayout::For(features::kTakesManySlots, ~0u).num_slots, limits::kMaxOpSlots);
}

}  // namespace
}  // namespace epd::shm
