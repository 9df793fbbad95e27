// Goal: the shared-memory ABI of version 2 stays what it is: a field that moves, or changes its size, is a new version.
#include <gtest/gtest.h>

#include <cstddef>
#include <string>

#include "proto/epd/v1/segment.h"

namespace epd::shm {
namespace {

#define SIZE(type) \
  { #type, 0, sizeof(type) }
#define FIELD(type, name) \
  { #type "." #name, offsetof(type, name), sizeof(type::name) }

struct Place {
  const char* name;
  size_t offset;
  size_t bytes;
};

constexpr Place kPlaces[] = {
    SIZE(SlotsHeader),
    FIELD(SlotsHeader, magic),
    FIELD(SlotsHeader, version),
    FIELD(SlotsHeader, header_bytes),
    FIELD(SlotsHeader, segment_bytes),
    FIELD(SlotsHeader, session_id),
    FIELD(SlotsHeader, incarnation),
    FIELD(SlotsHeader, num_areas),
    FIELD(SlotsHeader, reserved),
    FIELD(SlotsHeader, ended),
    FIELD(SlotsHeader, asleep),
    FIELD(SlotsHeader, armed),
    FIELD(SlotsHeader, streamed),
    FIELD(SlotsHeader, areas),
    FIELD(SlotsHeader, used_groups),
    FIELD(SlotsHeader, armed_of_many),
    FIELD(SlotsHeader, streamed_of_many),
    SIZE(Area),
    FIELD(Area, offset),
    FIELD(Area, stride),
    FIELD(Area, count),
    SIZE(Slot),
    FIELD(Slot, word),
    FIELD(Slot, sleeping),
    FIELD(Slot, failed),
    FIELD(Slot, reserved),
    FIELD(Slot, request),
    FIELD(Slot, reply),
    FIELD(Slot, eager),
    FIELD(Slot, plan_name),
    FIELD(Slot, direct),
    SIZE(SlotRequest),
    FIELD(SlotRequest, step),
    FIELD(SlotRequest, kind),
    FIELD(SlotRequest, group_id),
    FIELD(SlotRequest, epoch),
    FIELD(SlotRequest, formation),
    FIELD(SlotRequest, rank),
    FIELD(SlotRequest, error_code),
    FIELD(SlotRequest, program),
    FIELD(SlotRequest, execution),
    FIELD(SlotRequest, ordinal),
    FIELD(SlotRequest, occurrence),
    FIELD(SlotRequest, has_name),
    FIELD(SlotRequest, dtype),
    FIELD(SlotRequest, has_weights),
    FIELD(SlotRequest, top_k),
    FIELD(SlotRequest, alignment),
    FIELD(SlotRequest, plan_bytes),
    FIELD(SlotRequest, row_bytes),
    FIELD(SlotRequest, plan_id),
    FIELD(SlotRequest, spec_hash),
    FIELD(SlotRequest, num_tokens),
    FIELD(SlotRequest, recv_capacity),
    FIELD(SlotRequest, stage_bytes),
    FIELD(SlotRequest, out_bytes),
    FIELD(SlotRequest, announce),
    FIELD(SlotRequest, operation),
    FIELD(SlotRequest, stream),
    FIELD(SlotRequest, error),
    SIZE(AnnounceRequest),
    FIELD(AnnounceRequest, demand),
    FIELD(AnnounceRequest, route_report),
    FIELD(AnnounceRequest, client),
    FIELD(AnnounceRequest, eager_buffer),
    FIELD(AnnounceRequest, published),
    FIELD(AnnounceRequest, name),
    SIZE(OperationRequest),
    FIELD(OperationRequest, op_id),
    SIZE(StreamRequest),
    FIELD(StreamRequest, announce_slot),
    FIELD(StreamRequest, reserved),
    FIELD(StreamRequest, move_report),
    FIELD(StreamRequest, plan_header),
    SIZE(SlotReply),
    FIELD(SlotReply, op_id),
    FIELD(SlotReply, plan_id),
    FIELD(SlotReply, region_offset),
    FIELD(SlotReply, region_bytes),
    FIELD(SlotReply, out_offset),
    FIELD(SlotReply, out_bytes),
    FIELD(SlotReply, message),
    SIZE(SlotEagerBuffers),
    FIELD(SlotEagerBuffers, offset),
    FIELD(SlotEagerBuffers, num_eager_buffers),
    FIELD(SlotEagerBuffers, good),
    FIELD(SlotEagerBuffers, eager_buffer_of_rank),
    SIZE(PlanName),
    FIELD(PlanName, group_id),
    FIELD(PlanName, epoch),
    FIELD(PlanName, plan_id),
    SIZE(SlotDirect),
    FIELD(SlotDirect, generation),
    FIELD(SlotDirect, met),
    FIELD(SlotDirect, execution),
    SIZE(RecordsHeader),
    FIELD(RecordsHeader, magic),
    FIELD(RecordsHeader, version),
    FIELD(RecordsHeader, header_bytes),
    FIELD(RecordsHeader, segment_bytes),
    FIELD(RecordsHeader, max_sessions),
    FIELD(RecordsHeader, slots_per_session),
    FIELD(RecordsHeader, max_operations),
    FIELD(RecordsHeader, touched),
    SIZE(SlotRecord),
    FIELD(SlotRecord, claim),
    FIELD(SlotRecord, op_id),
    SIZE(OperationRecord),
    FIELD(OperationRecord, op_id),
    FIELD(OperationRecord, outcome),
    FIELD(OperationRecord, code),
    FIELD(OperationRecord, cause),
    SIZE(SlotsSegment),
    FIELD(SlotsSegment, header),
    FIELD(SlotsSegment, slots),
    SIZE(RecordsSegment),
    FIELD(RecordsSegment, header),
    FIELD(RecordsSegment, slots),
    FIELD(RecordsSegment, operations),
};

// Name, offset, bytes.
constexpr char kGolden[] = R"(
SlotsHeader 0 4096
SlotsHeader.magic 0 8
SlotsHeader.version 8 4
SlotsHeader.header_bytes 12 4
SlotsHeader.segment_bytes 16 8
SlotsHeader.session_id 24 8
SlotsHeader.incarnation 32 8
SlotsHeader.num_areas 40 4
SlotsHeader.reserved 44 4
SlotsHeader.ended 64 4
SlotsHeader.asleep 128 4
SlotsHeader.armed 192 32
SlotsHeader.streamed 256 32
SlotsHeader.areas 320 1024
SlotsHeader.used_groups 1344 8
SlotsHeader.armed_of_many 1408 512
SlotsHeader.streamed_of_many 1920 512
Area 0 16
Area.offset 0 8
Area.stride 8 4
Area.count 12 4
Slot 0 4096
Slot.word 0 8
Slot.sleeping 8 4
Slot.failed 12 4
Slot.reserved 16 48
Slot.request 64 904
Slot.reply 968 2608
Slot.eager 3576 272
Slot.plan_name 3848 24
Slot.direct 3872 16
SlotRequest 0 904
SlotRequest.step 0 4
SlotRequest.kind 4 4
SlotRequest.group_id 8 8
SlotRequest.epoch 16 8
SlotRequest.formation 24 8
SlotRequest.rank 32 4
SlotRequest.error_code 36 4
SlotRequest.program 40 16
SlotRequest.execution 56 8
SlotRequest.ordinal 64 4
SlotRequest.occurrence 68 4
SlotRequest.has_name 72 4
SlotRequest.dtype 76 4
SlotRequest.has_weights 80 4
SlotRequest.top_k 84 4
SlotRequest.alignment 88 4
SlotRequest.plan_bytes 92 4
SlotRequest.row_bytes 96 8
SlotRequest.plan_id 104 8
SlotRequest.spec_hash 112 8
SlotRequest.num_tokens 120 8
SlotRequest.recv_capacity 128 8
SlotRequest.stage_bytes 136 8
SlotRequest.out_bytes 144 8
SlotRequest.announce 152 280
SlotRequest.operation 152 8
SlotRequest.stream 152 112
SlotRequest.error 432 472
AnnounceRequest 0 280
AnnounceRequest.demand 0 8
AnnounceRequest.route_report 8 8
AnnounceRequest.client 8 8
AnnounceRequest.eager_buffer 16 4
AnnounceRequest.published 20 4
AnnounceRequest.name 24 256
OperationRequest 0 8
OperationRequest.op_id 0 8
StreamRequest 0 112
StreamRequest.announce_slot 0 4
StreamRequest.reserved 4 4
StreamRequest.move_report 8 8
StreamRequest.plan_header 16 96
SlotReply 0 2608
SlotReply.op_id 0 8
SlotReply.plan_id 8 8
SlotReply.region_offset 16 8
SlotReply.region_bytes 24 8
SlotReply.out_offset 32 8
SlotReply.out_bytes 40 8
SlotReply.message 48 2560
SlotEagerBuffers 0 272
SlotEagerBuffers.offset 0 8
SlotEagerBuffers.num_eager_buffers 8 4
SlotEagerBuffers.good 12 4
SlotEagerBuffers.eager_buffer_of_rank 16 256
PlanName 0 24
PlanName.group_id 0 8
PlanName.epoch 8 8
PlanName.plan_id 16 8
SlotDirect 0 16
SlotDirect.generation 0 4
SlotDirect.met 4 4
SlotDirect.execution 8 8
RecordsHeader 0 4096
RecordsHeader.magic 0 8
RecordsHeader.version 8 4
RecordsHeader.header_bytes 12 4
RecordsHeader.segment_bytes 16 8
RecordsHeader.max_sessions 24 4
RecordsHeader.slots_per_session 28 4
RecordsHeader.max_operations 32 4
RecordsHeader.touched 40 8
SlotRecord 0 16
SlotRecord.claim 0 8
SlotRecord.op_id 8 8
OperationRecord 0 960
OperationRecord.op_id 0 8
OperationRecord.outcome 8 4
OperationRecord.code 12 4
OperationRecord.cause 16 944
SlotsSegment 0 1052672
SlotsSegment.header 0 4096
SlotsSegment.slots 4096 1048576
RecordsSegment 0 12062720
RecordsSegment.header 0 4096
RecordsSegment.slots 4096 4194304
RecordsSegment.operations 4198400 7864320
)";

TEST(SegmentLayoutTest, NothingHasMovedInThisVersion) {
  std::string found = "\n";
  for (const Place& place : kPlaces) {
    found += std::string(place.name) + " " + std::to_string(place.offset) + " " +
             std::to_string(place.bytes) + "\n";
  }
  EXPECT_EQ(kSegmentVersion, 2u);
  EXPECT_EQ(found, kGolden);
}

}  // namespace
}  // namespace epd::shm
