// Goal: the library's own codec and the real protobuf library read each other's bytes, field by
// field, and bytes that are no message are refused and never read out of bounds (the test also runs
// under the address sanitizer).
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "client/c/attach_messages.h"
#include "proto/epd/v1/attach.pb.h"

namespace epd::client {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

GroupSpec FullSpec() {
  GroupSpec spec;
  spec.name = "moe";
  spec.instance = "run-7";
  spec.tenant = "eval";
  spec.num_ranks = 3;
  spec.num_experts = 5;
  spec.expert_owner = {0, 2, 300, 1, 0};
  spec.max_tokens_per_rank = 4096;
  spec.recv_capacity_per_rank = 40000;
  spec.hidden = 7168;
  spec.top_k = 8;
  spec.max_token_dtype = 2;
  spec.drop_on_overflow = true;
  spec.executor = Executor::kWorker;
  spec.backend = "cpu";
  spec.deadlines = {20 * kSecond, 600 * kSecond + 5, 30 * kSecond, 300 * kSecond};
  return spec;
}

v1::GroupSpec FullProto() {
  v1::GroupSpec proto;
  proto.set_name("moe");
  proto.set_instance("run-7");
  proto.set_tenant("eval");
  proto.set_num_ranks(3);
  proto.set_num_experts(5);
  for (const uint32_t owner : {0, 2, 300, 1, 0}) proto.add_expert_owner(owner);
  proto.set_max_tokens_per_rank(4096);
  proto.set_recv_capacity_per_rank(40000);
  proto.set_hidden(7168);
  proto.set_top_k(8);
  proto.set_max_token_dtype(v1::DTYPE_BFLOAT16);
  proto.set_drop_on_overflow(true);
  proto.set_executor(v1::EXECUTOR_WORKER);
  proto.set_backend("cpu");
  proto.mutable_deadlines()->mutable_warn_after()->set_seconds(20);
  proto.mutable_deadlines()->mutable_absent()->set_seconds(600);
  proto.mutable_deadlines()->mutable_absent()->set_nanos(5);
  proto.mutable_deadlines()->mutable_undecided()->set_seconds(30);
  proto.mutable_deadlines()->mutable_form()->set_seconds(300);
  return proto;
}

v1::ClientMessage Parsed(const ClientMessage& message) {
  v1::ClientMessage proto;
  EXPECT_TRUE(proto.ParseFromString(EncodeClientMessage(message)));
  EXPECT_TRUE(proto.GetReflection()->GetUnknownFields(proto).empty());
  return proto;
}

ServerMessage Decoded(const v1::ServerMessage& proto) {
  ServerMessage message;
  const Status status = DecodeServerMessage(proto.SerializeAsString(), &message);
  EXPECT_TRUE(status.ok()) << status.message;
  return message;
}

v1::ServerMessage FullJoined() {
  v1::ServerMessage proto;
  v1::Joined& joined = *proto.mutable_joined();
  joined.set_request_id(9);
  joined.set_group_id(UINT64_MAX);
  joined.set_epoch(4);
  joined.set_formation(2);
  joined.set_stream_region_offset(64);
  joined.set_stream_region_bytes(4096);
  joined.add_slots()->set_worker("cuda:0");
  joined.add_slots()->set_worker("cuda:1");
  for (uint32_t rank = 0; rank < 3; ++rank) {
    v1::Joined::Arena& arena = *joined.add_arenas();
    arena.set_rank(rank);
    arena.set_bytes(uint64_t{1} << 40);
    arena.set_own(rank == 1);
    if (rank == 2) {
      arena.set_sharing(v1::ARENA_SHARING_DEVICE_HANDLE);
      arena.set_handle(std::string(64, 'h'));
      arena.set_device_uuid("0123456789abcdef");
    } else if (rank == 0) {
      for (const uint32_t landing : {0u, 300u}) arena.add_landing_ranks(landing);
    }
    v1::Joined::Member& member = *joined.add_members();
    member.set_rank(rank);
    member.set_node("n" + std::to_string(rank));
    member.set_host("host");
    member.set_pid(-1);
    member.set_client_name("python3 train.py");
    member.set_session_id(77);
    member.set_worker("cuda:" + std::to_string(rank));
  }
  *joined.mutable_spec() = FullProto();
  return proto;
}

TEST(AttachCodecTest, ProtobufReadsAttach) {
  Attach attach;
  attach.min_version = 1;
  attach.max_version = 3;
  attach.features = UINT64_MAX;
  attach.client_name = "a b";
  attach.client_version = "0.1";
  attach.started = 1700000000;
  const v1::ClientMessage proto = Parsed(attach);
  ASSERT_TRUE(proto.has_attach());
  EXPECT_EQ(proto.attach().min_version(), 1u);
  EXPECT_EQ(proto.attach().max_version(), 3u);
  EXPECT_EQ(proto.attach().features(), UINT64_MAX);
  EXPECT_EQ(proto.attach().client_name(), "a b");
  EXPECT_EQ(proto.attach().client_version(), "0.1");
  EXPECT_EQ(proto.attach().started(), 1700000000);
}

TEST(AttachCodecTest, ProtobufReadsJoinWithEveryFieldOfTheSpec) {
  Join join;
  join.request_id = 5;
  join.spec = FullSpec();
  join.ranks = {2, 0, 200};
  join.devices = {"cpu:0", "", "cpu:1"};
  join.min_epoch = 6;
  join.program = "attention";
  join.metadata = "layers 0 to 3";
  join.deadline = 3 * kSecond / 2;
  const v1::ClientMessage proto = Parsed(join);
  ASSERT_TRUE(proto.has_join());
  EXPECT_EQ(proto.join().request_id(), 5u);
  EXPECT_EQ(proto.join().spec().SerializeAsString(), FullProto().SerializeAsString());
  EXPECT_EQ(std::vector<uint32_t>(proto.join().ranks().begin(), proto.join().ranks().end()),
            join.ranks);
  ASSERT_EQ(proto.join().devices_size(), 3);
  EXPECT_EQ(proto.join().devices(1), "");
  EXPECT_EQ(proto.join().devices(2), "cpu:1");
  EXPECT_EQ(proto.join().min_epoch(), 6u);
  EXPECT_EQ(proto.join().program(), "attention");
  EXPECT_EQ(proto.join().metadata(), "layers 0 to 3");
  EXPECT_EQ(proto.join().deadline().seconds(), 1);
  EXPECT_EQ(proto.join().deadline().nanos(), 500'000'000);
}

TEST(AttachCodecTest, ProtobufReadsLeaveAndDrained) {
  const v1::ClientMessage leave = Parsed(Leave{1, 2, "no memory"});
  ASSERT_TRUE(leave.has_leave());
  EXPECT_EQ(leave.leave().request_id(), 1u);
  EXPECT_EQ(leave.leave().group_id(), 2u);
  EXPECT_EQ(leave.leave().why(), "no memory");
  const std::string program("0123456789abcde\0", 16);
  const v1::ClientMessage drained = Parsed(Drained{3, 4, {{0, program, 8}, {1, program, 9}}});
  ASSERT_TRUE(drained.has_drained());
  EXPECT_EQ(drained.drained().group_id(), 3u);
  EXPECT_EQ(drained.drained().formation(), 4u);
  ASSERT_EQ(drained.drained().counts_size(), 2);
  EXPECT_EQ(drained.drained().counts(0).program(), program);
  EXPECT_EQ(drained.drained().counts(1).rank(), 1u);
  EXPECT_EQ(drained.drained().counts(1).begun(), 9u);
}

TEST(AttachCodecTest, EmptyBodiesStayPresent) {
  Attach zeros;
  zeros.min_version = zeros.max_version = 0;
  EXPECT_TRUE(Parsed(zeros).has_attach());
  EXPECT_TRUE(Parsed(Leave{}).has_leave());
}

TEST(AttachCodecTest, ReadsWhatProtobufWritesForAttached) {
  v1::ServerMessage proto;
  v1::Attached& a = *proto.mutable_attached();
  a.set_version(1);
  a.set_features(2);
  a.set_session_id(3);
  a.set_incarnation(4);
  a.set_node("node");
  a.set_daemon_version("1.2");
  a.set_daemon_pid(99);
  a.mutable_form()->set_seconds(600);
  const auto message = std::get<Attached>(Decoded(proto));
  EXPECT_EQ(message.version, 1u);
  EXPECT_EQ(message.features, 2u);
  EXPECT_EQ(message.session_id, 3u);
  EXPECT_EQ(message.incarnation, 4u);
  EXPECT_EQ(message.node, "node");
  EXPECT_EQ(message.daemon_version, "1.2");
  EXPECT_EQ(message.daemon_pid, 99u);
  EXPECT_EQ(message.form, 600'000'000'000);
}

TEST(AttachCodecTest, ReadsWhatProtobufWritesForJoined) {
  const auto message = std::get<Joined>(Decoded(FullJoined()));
  EXPECT_EQ(message.request_id, 9u);
  EXPECT_EQ(message.group_id, UINT64_MAX);
  EXPECT_EQ(message.epoch, 4u);
  EXPECT_EQ(message.formation, 2u);
  ASSERT_EQ(message.arenas.size(), 3u);
  EXPECT_EQ(message.arenas[2].rank, 2u);
  EXPECT_EQ(message.arenas[0].landing_ranks, (std::vector<uint32_t>{0, 300}));
  EXPECT_TRUE(message.arenas[1].landing_ranks.empty());
  EXPECT_EQ(message.arenas[2].bytes, uint64_t{1} << 40);
  EXPECT_TRUE(message.arenas[1].own);
  EXPECT_FALSE(message.arenas[2].own);
  EXPECT_EQ(message.arenas[1].sharing, ArenaSharing::kMemfd);
  EXPECT_EQ(message.arenas[2].sharing, ArenaSharing::kDeviceHandle);
  EXPECT_EQ(message.arenas[2].handle, std::string(64, 'h'));
  EXPECT_EQ(message.arenas[2].device_uuid, "0123456789abcdef");
  EXPECT_EQ(message.stream_region_offset, 64u);
  EXPECT_EQ(message.stream_region_bytes, 4096u);
  ASSERT_EQ(message.members.size(), 3u);
  EXPECT_EQ(message.members[1].node, "n1");
  EXPECT_EQ(message.members[1].pid, -1);
  EXPECT_EQ(message.members[1].session_id, 77u);
  EXPECT_EQ(message.members[1].worker, "cuda:1");
  ASSERT_EQ(message.slots.size(), 2u);
  EXPECT_EQ(message.slots[1].worker, "cuda:1");
  EXPECT_EQ(EncodeGroupSpec(message.spec), EncodeGroupSpec(FullSpec()));
}

TEST(AttachCodecTest, ReadsTheStatusesOfTheOtherAnswers) {
  v1::ServerMessage proto;
  proto.mutable_join_failed()->set_request_id(3);
  proto.mutable_join_failed()->mutable_status()->set_code(6);
  proto.mutable_join_failed()->mutable_status()->set_message("taken");
  const auto failed = std::get<JoinFailed>(Decoded(proto));
  EXPECT_EQ(failed.request_id, 3u);
  EXPECT_EQ(failed.status.code, Code::kAlreadyExists);
  EXPECT_EQ(failed.status.message, "taken");

  proto.mutable_reform()->set_group_id(4);
  proto.mutable_reform()->set_formation(5);
  proto.mutable_reform()->set_wait(true);
  proto.mutable_reform()->mutable_cause()->set_code(-7);
  const auto reform = std::get<Reform>(Decoded(proto));
  EXPECT_EQ(reform.group_id, 4u);
  EXPECT_EQ(reform.formation, 5u);
  EXPECT_TRUE(reform.wait);
  EXPECT_EQ(reform.cause.code, Code::kUnknown) << "a code that is none must not be trusted";

  proto.mutable_left()->set_request_id(8);
  EXPECT_EQ(std::get<Left>(Decoded(proto)).request_id, 8u);
  proto.mutable_group_ended()->set_group_id(11);
  EXPECT_EQ(std::get<GroupEnded>(Decoded(proto)).group_id, 11u);
  proto.mutable_goodbye()->mutable_status()->set_code(14);
  EXPECT_EQ(std::get<Goodbye>(Decoded(proto)).status.code, Code::kUnavailable);
}

TEST(AttachCodecTest, FieldsOfANewerDaemonAreSkipped) {
  // Field 1000, as varint, fixed64, bytes and fixed32, before a Left and inside of it.
  const std::string extra = std::string("\xc0\x3e\x05", 3) + std::string("\xc1\x3e", 2) +
                            "12345678" + std::string("\xc2\x3e\x03", 3) + "abc" +
                            std::string("\xc5\x3e", 2) + "1234";
  const std::string body = extra + std::string("\x08\x2a", 2);
  const std::string bytes = extra + "\x22" + std::string(1, static_cast<char>(body.size())) + body;
  v1::ServerMessage reference;
  ASSERT_TRUE(reference.ParseFromString(bytes));
  ServerMessage message;
  ASSERT_TRUE(DecodeServerMessage(bytes, &message).ok());
  EXPECT_EQ(std::get<Left>(message).request_id, 42u);
  ASSERT_TRUE(DecodeServerMessage(extra, &message).ok());
  EXPECT_TRUE(std::holds_alternative<UnknownMessage>(message));
}

TEST(AttachCodecTest, TruncatedMessagesAreRefusedWhereProtobufRefusesThem) {
  const std::string bytes = FullJoined().SerializeAsString();
  int refused = 0;
  for (size_t length = 0; length < bytes.size(); ++length) {
    // A heap copy of the exact length, so that reading past it is seen by the sanitizer.
    const std::vector<char> cut(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(length));
    ServerMessage message;
    const bool ok = DecodeServerMessage({cut.data(), cut.size()}, &message).ok();
    v1::ServerMessage reference;
    EXPECT_EQ(ok, reference.ParseFromArray(cut.data(), static_cast<int>(length)))
        << "length " << length;
    refused += ok ? 0 : 1;
  }
  EXPECT_GT(refused, 100);
}

// Whoever accepts mutated bytes must agree on what they say. (Protobuf refuses more: text that is
// no UTF-8, groups.)
TEST(AttachCodecTest, MutatedMessagesThatProtobufAcceptsReadTheSame) {
  constexpr uint32_t kSeed = 20240607;
  std::mt19937 random(kSeed);
  const std::string bytes = FullJoined().SerializeAsString();
  int agreed = 0;
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string mutated = bytes;
    for (int i = 0, n = 1 + static_cast<int>(random() % 3); i < n; ++i) {
      mutated[random() % mutated.size()] = static_cast<char>(random());
    }
    ServerMessage message;
    const bool ok = DecodeServerMessage(mutated, &message).ok();
    refused += ok ? 0 : 1;
    v1::ServerMessage reference;
    if (!reference.ParseFromString(mutated) || !ok) continue;
    const auto* joined = std::get_if<Joined>(&message);
    ASSERT_EQ(joined != nullptr, reference.has_joined()) << "seed " << kSeed << " round " << round;
    if (joined == nullptr) continue;
    ++agreed;
    ASSERT_EQ(joined->group_id, reference.joined().group_id())
        << "seed " << kSeed << " round " << round;
    ASSERT_EQ(joined->formation, reference.joined().formation());
    ASSERT_EQ(joined->arenas.size(), static_cast<size_t>(reference.joined().arenas_size()));
    ASSERT_EQ(joined->members.size(), static_cast<size_t>(reference.joined().members_size()));
    ASSERT_EQ(joined->spec.name, reference.joined().spec().name());
    ASSERT_EQ(joined->spec.hidden, reference.joined().spec().hidden());
    ASSERT_EQ(joined->spec.expert_owner.size(),
              static_cast<size_t>(reference.joined().spec().expert_owner_size()));
  }
  EXPECT_GT(agreed, 1000);
  EXPECT_GT(refused, 1000);
}

// Two bytes of an empty entry become a hundred of memory.
TEST(AttachCodecTest, MoreEntriesThanAnyGroupHasAreRefused) {
  v1::ServerMessage proto;
  for (uint32_t i = 0; i < limits::kExperts; ++i) proto.mutable_joined()->add_members();
  EXPECT_EQ(std::get<Joined>(Decoded(proto)).members.size(), limits::kExperts);
  proto.mutable_joined()->add_members();
  ServerMessage message;
  EXPECT_EQ(DecodeServerMessage(proto.SerializeAsString(), &message).code, Code::kDataLoss);
}

// Joined { spec { name } }, the name as a varint, and Joined itself as one.
TEST(AttachCodecTest, NumbersWhereTextsAndMessagesBelongAreRefused) {
  ServerMessage message;
  EXPECT_TRUE(DecodeServerMessage("\x12\x05\x3a\x03\x0a\x01x", &message).ok());
  EXPECT_EQ(DecodeServerMessage("\x12\x04\x3a\x02\x08\x05", &message).code, Code::kDataLoss);
  EXPECT_EQ(DecodeServerMessage("\x10\x05", &message).code, Code::kDataLoss);
}

TEST(AttachCodecTest, HostileDurationsSaturate) {
  v1::ServerMessage proto;
  auto& deadlines = *proto.mutable_joined()->mutable_spec()->mutable_deadlines();
  deadlines.mutable_absent()->set_seconds(INT64_MAX);
  deadlines.mutable_form()->set_seconds(INT64_MIN);
  const auto message = std::get<Joined>(Decoded(proto));
  EXPECT_EQ(message.spec.deadlines.absent, INT64_MAX);
  EXPECT_EQ(message.spec.deadlines.form, INT64_MIN);
}

}  // namespace
}  // namespace epd::client
