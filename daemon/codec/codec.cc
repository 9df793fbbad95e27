#include "daemon/codec/codec.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/resumable.h"
#include "proto/epd/v1/limits.h"
#include "proto/epd/v1/text.h"

namespace epd {
namespace {

const google::protobuf::FieldDescriptor* InProto(const DeadlineField& field) {
  return v1::Deadlines::descriptor()->FindFieldByName(field.name);
}

}  // namespace

v1::Status ToProto(const absl::Status& status) {
  v1::Status proto;
  proto.set_code(static_cast<int32_t>(status.code()));
  proto.set_message(text::Clean(std::string(status.message()), limits::kErrorBytes));
  proto.set_resumable(IsResumable(status));
  return proto;
}

absl::Status FromProto(const v1::Status& status) {
  const bool known =
      status.code() >= 0 && status.code() <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  absl::Status read(
      known ? static_cast<absl::StatusCode>(status.code()) : absl::StatusCode::kUnknown,
      text::Clean(status.message(), limits::kErrorBytes));
  return status.resumable() ? Resumable(std::move(read)) : read;
}

v1::ServerMessage JoinFailed(uint64_t request, const absl::Status& status) {
  v1::ServerMessage message;
  message.mutable_join_failed()->set_request_id(request);
  *message.mutable_join_failed()->mutable_status() = ToProto(status);
  return message;
}

google::protobuf::Duration ToProto(absl::Duration duration) {
  google::protobuf::Duration proto;
  absl::Duration rest;
  proto.set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &rest));
  proto.set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
  return proto;
}

absl::Duration FromProto(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

v1::GroupSpec ToProto(const GroupSpec& spec) {
  v1::GroupSpec proto;
  proto.set_name(spec.name);
  proto.set_instance(spec.instance);
  proto.set_tenant(spec.tenant);
  proto.set_num_ranks(spec.num_ranks);
  proto.set_num_experts(spec.num_experts);
  for (const Rank owner : spec.expert_owner) proto.add_expert_owner(owner.value);
  proto.set_max_tokens_per_rank(spec.max_tokens_per_rank);
  proto.set_recv_capacity_per_rank(spec.recv_capacity_per_rank);
  proto.set_hidden(spec.hidden);
  proto.set_top_k(spec.top_k);
  proto.set_max_token_dtype(static_cast<v1::Dtype>(spec.max_token_dtype));
  proto.set_drop_on_overflow(spec.drop_on_overflow);
  proto.set_executor(static_cast<v1::Executor>(spec.executor));
  proto.set_backend(spec.backend);
  const google::protobuf::Reflection& deadlines = *proto.deadlines().GetReflection();
  for (const DeadlineField& field : kDeadlineFields) {
    deadlines.MutableMessage(proto.mutable_deadlines(), InProto(field))
        ->CopyFrom(ToProto(spec.deadlines.*field.value));
  }
  return proto;
}

absl::StatusOr<GroupSpec> FromProto(const v1::GroupSpec& proto, const SpecDefaults& defaults) {
  GroupSpec spec;
  spec.name = proto.name();
  spec.instance = proto.instance();
  spec.tenant = proto.tenant();
  spec.num_ranks = proto.num_ranks();
  spec.num_experts = proto.num_experts();
  spec.expert_owner = std::vector<Rank>(proto.expert_owner().begin(), proto.expert_owner().end());
  spec.max_tokens_per_rank = proto.max_tokens_per_rank();
  spec.recv_capacity_per_rank = proto.recv_capacity_per_rank();
  spec.hidden = proto.hidden();
  spec.top_k = proto.top_k();
  spec.drop_on_overflow = proto.drop_on_overflow();
  spec.backend = proto.backend().empty() ? "auto" : proto.backend();
  if (!v1::Dtype_IsValid(proto.max_token_dtype())) {
    return absl::InvalidArgumentError(absl::StrCat("spec.max_token_dtype: got ",
                                                   static_cast<int>(proto.max_token_dtype()),
                                                   ", expected 1 to 3"));
  }
  spec.max_token_dtype = static_cast<Dtype>(proto.max_token_dtype());
  if (!v1::Executor_IsValid(proto.executor())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "spec.executor: got ", static_cast<int>(proto.executor()), ", expected 0 to 2"));
  }
  spec.executor = static_cast<Executor>(proto.executor());
  if (spec.executor == Executor::kDefault) {
    // On a device it is the worker unless a group asks for the client, whoever moves this node's other rows.
    spec.executor = spec.on_device() ? Executor::kWorker : defaults.executor;
  }
  spec.deadlines = defaults.deadlines;
  const google::protobuf::Reflection& deadlines = *proto.deadlines().GetReflection();
  for (const DeadlineField& field : kDeadlineFields) {
    if (!deadlines.HasField(proto.deadlines(), InProto(field))) continue;
    google::protobuf::Duration given;
    given.CopyFrom(deadlines.GetMessage(proto.deadlines(), InProto(field)));
    const absl::Duration value = FromProto(given);
    if (value <= absl::ZeroDuration() || value > absl::Hours(24 * 365)) {
      return absl::InvalidArgumentError(absl::StrCat("spec.deadlines.", field.name, ": got ",
                                                     absl::FormatDuration(value),
                                                     ", expected more than 0 and at most a year"));
    }
    spec.deadlines.*field.value = value;
  }
  return spec;
}

}  // namespace epd
