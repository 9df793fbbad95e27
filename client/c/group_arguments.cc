#include "client/c/group_arguments.h"

#include <cstdlib>
#include <cstring>

#include "client/c/job_name.h"
#include "client/c/machine_device.h"
#include "client/c/struct_size.h"
#include "proto/epd/v1/limits.h"
#include "proto/epd/v1/text.h"

namespace epd::client {
namespace {

// Protobuf refuses strings that are no UTF-8 and the daemon then ends the session: a bad text must
// not get there.
Status ReadText(const char* given, const char* what, std::string* out) {
  if (given == nullptr) return {};
  *out = given;
  if (out->size() > limits::kNameBytes) {
    return MakeStatus(Code::kInvalidArgument, "%s: got %zu bytes, at most %zu are allowed", what,
                      out->size(), limits::kNameBytes);
  }
  if (const size_t bad = text::FindBad(*out, text::IsWordByte); bad < out->size()) {
    return MakeStatus(Code::kInvalidArgument,
                      "%s: byte 0x%02x is not allowed; use printable ASCII without spaces", what,
                      static_cast<unsigned char>((*out)[bad]));
  }
  return {};
}

Status ReadMetadata(const char* given, std::string* out) {
  if (given != nullptr) *out = given;
  if (out->size() > limits::kMetadataBytes) {
    return MakeStatus(Code::kInvalidArgument, "metadata: got %zu bytes, at most %zu are allowed",
                      out->size(), limits::kMetadataBytes);
  }
  if (const size_t bad = text::FindBad(*out, text::IsPrintableByte); bad < out->size()) {
    return MakeStatus(Code::kInvalidArgument,
                      "metadata: byte 0x%02x is not allowed; use printable ASCII",
                      static_cast<unsigned char>((*out)[bad]));
  }
  return {};
}

Status ReadExecutor(epd_executor given, Executor* out) {
  switch (given) {
    case EPD_EXECUTOR_DEFAULT:
      *out = Executor::kUnspecified;
      return {};
    case EPD_EXECUTOR_WORKER:
      *out = Executor::kWorker;
      return {};
    case EPD_EXECUTOR_CLIENT:
      *out = Executor::kClient;
      return {};
  }
  return MakeStatus(Code::kInvalidArgument, "spec.executor: got %d, expected an epd_executor",
                    static_cast<int>(given));
}

int64_t Nanoseconds(int64_t ms) {
  constexpr int64_t kMaxMs = INT64_MAX / 1'000'000;
  return ms <= 0 ? 0 : (ms > kMaxMs ? kMaxMs : ms) * 1'000'000;
}

Status ReadSpec(const epd_group_spec* given, GroupSpec* spec) {
  epd_group_spec s;
  if (Status status = ReadStruct(given, "spec", &s); !status.ok()) return status;
  if (s.name == nullptr || *s.name == '\0')
    return MakeStatus(Code::kInvalidArgument, "spec.name must be set");
  if (Status t = ReadText(s.name, "spec.name", &spec->name); !t.ok()) return t;
  if (s.instance == nullptr) {
    spec->instance = InstanceOfEnvironment();
  } else if (Status t = ReadText(s.instance, "spec.instance", &spec->instance); !t.ok()) {
    return t;
  }
  const char* const tenant = s.tenant != nullptr ? s.tenant : std::getenv("EPD_TENANT");
  if (Status t =
          ReadText(tenant, s.tenant != nullptr ? "spec.tenant" : "EPD_TENANT", &spec->tenant);
      !t.ok()) {
    return t;
  }
  if (Status t = ReadText(s.backend, "spec.backend", &spec->backend); !t.ok()) return t;
  if (spec->backend.empty()) spec->backend = "auto";
  spec->num_ranks = s.num_ranks;
  spec->num_experts = s.num_experts;
  if (s.expert_owner != nullptr) {
    if (s.num_experts > limits::kExperts) {
      return MakeStatus(Code::kInvalidArgument, "spec.num_experts: got %u, at most %u are allowed",
                        s.num_experts, limits::kExperts);
    }
    spec->expert_owner.assign(s.expert_owner, s.expert_owner + s.num_experts);
  }
  spec->max_tokens_per_rank = s.max_tokens_per_rank;
  spec->recv_capacity_per_rank = s.recv_capacity_per_rank;
  spec->hidden = s.hidden;
  spec->top_k = s.top_k;
  spec->max_token_dtype = s.max_token_dtype;
  spec->drop_on_overflow = s.drop_on_overflow != 0;
  if (Status t = ReadExecutor(s.executor, &spec->executor); !t.ok()) return t;
  spec->deadlines = {.warn_after = Nanoseconds(s.warn_after_ms),
                     .absent = Nanoseconds(s.absent_ms),
                     .undecided = Nanoseconds(s.undecided_ms),
                     .form = Nanoseconds(s.form_ms)};
  return {};
}

}  // namespace

Status ReadJoin(const epd_join_args* given, Join* join, epd_plans* plans) {
  epd_join_args args;
  if (Status s = ReadStruct(given, "args", &args); !s.ok()) return s;
  if (Status s = ReadSpec(args.spec, &join->spec); !s.ok()) return s;
  if (args.ranks == nullptr || args.num_ranks == 0 || args.num_ranks > limits::kJoinRanks) {
    return MakeStatus(Code::kInvalidArgument, "ranks: got %zu, expected 1 to %u", args.num_ranks,
                      limits::kJoinRanks);
  }
  join->ranks.assign(args.ranks, args.ranks + args.num_ranks);
  if (args.devices != nullptr) {
    join->devices.resize(args.num_ranks);
    for (size_t i = 0; i < args.num_ranks; ++i) {
      if (Status s = ReadText(args.devices[i], "devices", &join->devices[i]); !s.ok()) return s;
      join->devices[i] = MachineDevice(join->devices[i], std::getenv("CUDA_VISIBLE_DEVICES"));
    }
  }
  join->min_epoch = args.min_epoch;
  *plans = args.plans;
  join->deadline = Nanoseconds(args.deadline_ms);
  if (Status s = ReadText(args.program, "program", &join->program); !s.ok()) return s;
  return ReadMetadata(args.metadata, &join->metadata);
}

}  // namespace epd::client
