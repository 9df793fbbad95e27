// Goal: nothing is lost between the wire and control, and what cannot be understood is named.
#include "daemon/codec/codec.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/epd/v1/limits.h"

namespace epd {
namespace {

using testing::HasSubstr;

GroupSpec FullSpec() {
  GroupSpec spec;
  spec.name = "g";
  spec.instance = "i";
  spec.tenant = "t";
  spec.num_ranks = 2;
  spec.num_experts = 2;
  spec.expert_owner = {Rank(1), Rank(0)};
  spec.max_tokens_per_rank = 3;
  spec.recv_capacity_per_rank = 4;
  spec.hidden = 5;
  spec.top_k = 6;
  spec.max_token_dtype = Dtype::kBfloat16;
  spec.drop_on_overflow = true;
  spec.executor = Executor::kWorker;
  spec.backend = "cpu";
  spec.deadlines = {absl::Seconds(1), absl::Seconds(2), absl::Milliseconds(3), absl::Seconds(4)};
  return spec;
}

TEST(CodecTest, SpecSurvivesTheWire) {
  const auto back = FromProto(ToProto(FullSpec()), SpecDefaults());
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, FullSpec());
}

TEST(CodecTest, EveryDeadlineOfTheMessageIsKnown) {
  const google::protobuf::Descriptor& message = *v1::Deadlines::descriptor();
  EXPECT_EQ(message.field_count(), static_cast<int>(std::size(kDeadlineFields)));
  for (const DeadlineField& field : kDeadlineFields) {
    EXPECT_NE(message.FindFieldByName(field.name), nullptr) << field.name;
  }
}

TEST(CodecTest, UnsetFieldsTakeTheDaemonsDefaults) {
  SpecDefaults defaults;
  defaults.deadlines.absent = absl::Seconds(77);
  defaults.executor = Executor::kWorker;
  v1::GroupSpec proto;
  proto.mutable_deadlines()->mutable_form()->set_seconds(5);
  const auto spec = FromProto(proto, defaults);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->deadlines.absent, absl::Seconds(77));
  EXPECT_EQ(spec->deadlines.form, absl::Seconds(5));
  EXPECT_EQ(spec->executor, Executor::kWorker);
  EXPECT_EQ(spec->backend, "auto");
}

TEST(CodecTest, OnADeviceTheWorkerMovesRowsUnlessAskedOtherwise) {
  SpecDefaults defaults;
  defaults.executor = Executor::kClient;
  v1::GroupSpec proto;
  proto.set_backend("cuda");
  EXPECT_EQ(FromProto(proto, defaults)->executor, Executor::kWorker);
  EXPECT_EQ(FromProto(proto, SpecDefaults())->executor, Executor::kWorker);
  proto.set_executor(v1::EXECUTOR_CLIENT);
  EXPECT_EQ(FromProto(proto, defaults)->executor, Executor::kClient);
}

TEST(CodecTest, ImpossibleDeadlinesAndEnumsAreNamed) {
  v1::GroupSpec proto;
  proto.mutable_deadlines()->mutable_absent()->set_seconds(-1);
  EXPECT_THAT(std::string(FromProto(proto, SpecDefaults()).status().message()),
              HasSubstr("deadlines.absent: got -1s"));
  v1::GroupSpec dtype;
  dtype.set_max_token_dtype(static_cast<v1::Dtype>(9));
  EXPECT_THAT(std::string(FromProto(dtype, SpecDefaults()).status().message()),
              HasSubstr("max_token_dtype: got 9"));
  v1::GroupSpec executor;
  executor.set_executor(static_cast<v1::Executor>(9));
  EXPECT_THAT(std::string(FromProto(executor, SpecDefaults()).status().message()),
              HasSubstr("executor: got 9"));
}

TEST(CodecTest, AStatusIsCleanOnBothWays) {
  const absl::Status bad = absl::InternalError("\xff" + std::string(10'000, 'x'));
  const v1::Status sent = ToProto(bad);
  EXPECT_EQ(sent.message(), "?" + std::string(limits::kErrorBytes - 1, 'x'));
  v1::Status got;
  got.set_code(13);
  got.set_message("a\nb");
  EXPECT_EQ(FromProto(got), absl::InternalError("a?b"));
}

TEST(CodecTest, StatusAndDurationSurviveTheWire) {
  const absl::Status status = absl::AbortedError("why");
  EXPECT_EQ(FromProto(ToProto(status)), status);
  EXPECT_TRUE(FromProto(ToProto(absl::OkStatus())).ok());
  v1::Status unknown;
  unknown.set_code(4711);
  EXPECT_EQ(FromProto(unknown).code(), absl::StatusCode::kUnknown);
  for (const absl::Duration d :
       {absl::ZeroDuration(), absl::Nanoseconds(1), absl::Seconds(90) + absl::Nanoseconds(7)}) {
    EXPECT_EQ(FromProto(ToProto(d)), d);
  }
}

}  // namespace
}  // namespace epd
