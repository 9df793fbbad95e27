// Goal: a reader takes the areas of a slots segment from its header, refuses what does not lie in the segment, and says
// of another version which one it is and which ones it reads.
#include "proto/epd/v1/slots_view.h"

#include <gtest/gtest.h>

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
  EXPECT_EQ(view_.eager_buffers().count, kMaxEagerBuffers);
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
  segment_->header.num_areas = 4;
  segment_->header.areas[3] = {.offset = 0, .stride = 0, .count = 99};
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

}  // namespace
}  // namespace epd::shm
