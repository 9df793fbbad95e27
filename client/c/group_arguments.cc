#include "client/c/group_arguments.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>

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

// Whether a rank's device, as its join names it, is a GPU: by its number ("cuda:0") or its id.
bool NamesGpu(const std::string& device) {
  constexpr std::string_view kPrefixes[] = {"cuda:", "GPU-", "MIG-"};
  return std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                     [&](std::string_view prefix) { return device.rfind(prefix, 0) == 0; });
}

// A group whose ranks are on GPUs is a group of GPUs, unless it asks for another backend.
Status ChooseBackend(Join* join) {
  if (join->spec.backend != "auto") return {};
  const auto first = std::find_if(join->devices.begin(), join->devices.end(), NamesGpu);
  if (first == join->devices.end()) return {};
  const auto other = std::find_if_not(join->devices.begin(), join->devices.end(), NamesGpu);
  if (other != join->devices.end()) {
    const auto rank = [join](auto at) { return join->ranks[at - join->devices.begin()]; };
    return MakeStatus(
        Code::kInvalidArgument,
        "devices: rank %u is on %s and rank %u names no GPU (\"%s\"); name the GPU of "
        "every rank, as cuda:0, or ask for backend=cpu",
        rank(first), first->c_str(), rank(other), other->c_str());
  }
  join->spec.backend = "cuda";
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
  if (Status s = ChooseBackend(join); !s.ok()) return s;
  join->min_epoch = args.min_epoch;
  *plans = args.plans;
  join->deadline = Nanoseconds(args.deadline_ms);
  if (Status s = ReadText(args.program, "program", &join->program); !s.ok()) return s;
  return ReadMetadata(args.metadata, &join->metadata);
}

}  // namespace epd::client
