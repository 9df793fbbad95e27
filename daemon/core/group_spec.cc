#include "daemon/core/group_spec.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/core/nccl_ep_limits.h"
#include "proto/epd/v1/limits.h"
#include "proto/epd/v1/text.h"

namespace epd {
namespace {

absl::Status BadField(const GroupSpec& spec, std::string_view field, const std::string& got,
                      std::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat(
      "group=", text::Clean(spec.name, limits::kNameBytes), " spec field ", std::string(field),
      " is ", got, ", expected ", std::string(expected), "; fix the call"));
}

absl::Status CheckWord(const GroupSpec& spec, std::string_view field, const std::string& text) {
  if (text.size() > limits::kNameBytes) {
    return BadField(spec, field, absl::StrCat(text.size(), " bytes long"),
                    absl::StrCat("at most ", limits::kNameBytes, " bytes"));
  }
  if (!text::IsWord(text)) {
    return absl::InvalidArgumentError(
        absl::StrCat("spec field ", std::string(field),
                     " has spaces or unprintable characters, expected ASCII 33 to 126"));
  }
  return absl::OkStatus();
}

absl::Status CheckRange(const GroupSpec& spec, std::string_view field, uint64_t got, uint64_t min,
                        uint64_t max) {
  if (got >= min && got <= max) return absl::OkStatus();
  return BadField(spec, field, absl::StrCat(got), absl::StrCat(min, " to ", max));
}

absl::Status CheckExperts(const GroupSpec& spec) {
  if (spec.expert_owner.empty()) {
    if (spec.num_experts % spec.num_ranks == 0) return absl::OkStatus();
    return BadField(
        spec, "num_experts", absl::StrCat(spec.num_experts),
        absl::StrCat("a multiple of num_ranks=", spec.num_ranks, " or a table expert_owner"));
  }
  if (spec.expert_owner.size() != spec.num_experts) {
    return BadField(spec, "expert_owner", absl::StrCat(spec.expert_owner.size(), " entries long"),
                    absl::StrCat("num_experts=", spec.num_experts, " entries"));
  }
  const std::vector<Rank>& owners = spec.expert_owner.items();
  const auto bad = std::find_if(owners.begin(), owners.end(),
                                [&](Rank owner) { return owner.value >= spec.num_ranks; });
  if (bad == owners.end()) return absl::OkStatus();
  return BadField(spec, absl::StrCat("expert_owner[", bad - owners.begin(), "]"),
                  absl::StrCat(bad->value), absl::StrCat("below num_ranks=", spec.num_ranks));
}

absl::Status CheckDeadlines(const GroupSpec& spec) {
  for (const DeadlineField& field : kDeadlineFields) {
    const absl::Duration value = spec.deadlines.*field.value;
    if (value <= absl::ZeroDuration() || value == absl::InfiniteDuration()) {
      return BadField(spec, absl::StrCat("deadlines.", field.name), absl::FormatDuration(value),
                      "positive and finite");
    }
  }
  return absl::OkStatus();
}

// "auto, cpu, cuda or nccl_ep".
std::string BackendNames() {
  std::string names;
  for (const BackendTraits& one : kBackends) {
    const bool last = &one == std::end(kBackends) - 1;
    absl::StrAppend(&names, names.empty() ? "" : last ? " or " : ", ", one.name);
  }
  return names;
}

std::string OwnersText(const SharedList<Rank>& owners) {
  if (owners.empty()) return "contiguous";
  return absl::StrCat(
      "[",
      absl::StrJoin(owners, ",", [](std::string* out, Rank r) { absl::StrAppend(out, r.value); }),
      "]");
}

}  // namespace

std::string_view Name(Dtype dtype) {
  switch (dtype) {
    case Dtype::kUnspecified:
      return "unspecified";
    case Dtype::kFloat32:
      return "float32";
    case Dtype::kBfloat16:
      return "bfloat16";
    case Dtype::kFloat16:
      return "float16";
  }
  return "unknown";
}

std::string_view Name(Executor executor) {
  switch (executor) {
    case Executor::kDefault:
      return "default";
    case Executor::kClient:
      return "client";
    case Executor::kWorker:
      return "worker";
  }
  return "unknown";
}

int SizeBytes(Dtype dtype) {
  switch (dtype) {
    case Dtype::kUnspecified:
      return 0;
    case Dtype::kFloat32:
      return 4;
    case Dtype::kBfloat16:
    case Dtype::kFloat16:
      return 2;
  }
  return 0;
}

const BackendTraits& GroupSpec::traits() const {
  const BackendTraits* const found = FindBackend(backend);
  return found == nullptr ? kBackends[0] : *found;
}

absl::Status Validate(const GroupSpec& spec) {
  if (spec.name.empty())
    return absl::InvalidArgumentError("spec field name is empty, expected a group name");
  const absl::Status checks[] = {
      CheckWord(spec, "name", spec.name),
      CheckWord(spec, "instance", spec.instance),
      CheckWord(spec, "tenant", spec.tenant),
      CheckRange(spec, "num_ranks", spec.num_ranks, 1, limits::kGroupRanks),
      CheckRange(spec, "num_experts", spec.num_experts, 1, limits::kExperts),
      CheckRange(spec, "max_tokens_per_rank", spec.max_tokens_per_rank, 1, limits::kSlots),
      CheckRange(spec, "recv_capacity_per_rank", spec.recv_capacity_per_rank, 1, limits::kSlots),
      CheckRange(spec, "hidden", spec.hidden, 1, limits::kHidden),
      CheckRange(spec, "top_k", spec.top_k, 0, limits::kTopK),
      CheckRange(spec, "alignment", spec.alignment, 1, limits::kSlots),
  };
  for (const absl::Status& check : checks) {
    if (!check.ok()) return check;
  }
  if (SizeBytes(spec.max_token_dtype) == 0) {
    return BadField(spec, "max_token_dtype", std::string(Name(spec.max_token_dtype)),
                    "float32, bfloat16 or float16");
  }
  if (FindBackend(spec.backend) == nullptr) {
    return BadField(spec, "backend",
                    text::IsWord(spec.backend) ? spec.backend.substr(0, 40) : "unprintable",
                    BackendNames());
  }
  if (!spec.traits().client_executor && spec.executor == Executor::kClient) {
    return BadField(
        spec, "executor",
        absl::StrCat("client with backend=", spec.backend, ", whose rows only the worker moves"),
        absl::StrCat("worker, or none named; or backend=", spec.traits().served_by));
  }
  if (absl::Status experts = CheckExperts(spec); !experts.ok()) return experts;
  return CheckDeadlines(spec);
}

absl::Status CheckServed(const GroupSpec& spec) {
  if (spec.num_ranks <= spec.traits().max_ranks) return CheckNcclEpLimits(spec);
  return absl::UnimplementedError(absl::StrCat(
      "num_ranks: got ", spec.num_ranks, ", expected at most ", spec.traits().max_ranks,
      " with backend=", spec.backend, "; use several groups of fewer ranks"));
}

std::string Title(const GroupSpec& spec) {
  return spec.tenant.empty() ? spec.name : absl::StrCat(spec.name, " tenant=", spec.tenant);
}

GroupSpec Contract(GroupSpec spec) {
  spec.tenant.clear();
  spec.instance.clear();
  return spec;
}

uint64_t RowBytes(const GroupSpec& spec) {
  return uint64_t{spec.hidden} * static_cast<uint64_t>(SizeBytes(spec.max_token_dtype));
}

Rank ExpertOwner(const GroupSpec& spec, uint32_t expert) {
  if (!spec.expert_owner.empty()) return spec.expert_owner[expert];
  return Rank{expert / (spec.num_experts / spec.num_ranks)};
}

std::vector<FieldDifference> Differences(const GroupSpec& got, const GroupSpec& expected) {
  std::vector<FieldDifference> out;
  const auto text = [&out](std::string field, const std::string& a, const std::string& b) {
    if (a != b) out.push_back({std::move(field), a.empty() ? "\"\"" : a, b.empty() ? "\"\"" : b});
  };
  const auto number = [&text](std::string field, uint64_t a, uint64_t b) {
    text(std::move(field), absl::StrCat(a), absl::StrCat(b));
  };
  text("name", got.name, expected.name);
  text("instance", got.instance, expected.instance);
  text("tenant", got.tenant, expected.tenant);
  number("num_ranks", got.num_ranks, expected.num_ranks);
  number("num_experts", got.num_experts, expected.num_experts);
  if (got.expert_owner != expected.expert_owner)
    text("expert_owner", OwnersText(got.expert_owner), OwnersText(expected.expert_owner));
  number("max_tokens_per_rank", got.max_tokens_per_rank, expected.max_tokens_per_rank);
  number("recv_capacity_per_rank", got.recv_capacity_per_rank, expected.recv_capacity_per_rank);
  number("hidden", got.hidden, expected.hidden);
  number("top_k", got.top_k, expected.top_k);
  number("alignment", got.alignment, expected.alignment);
  text("max_token_dtype", std::string(Name(got.max_token_dtype)),
       std::string(Name(expected.max_token_dtype)));
  text("drop_on_overflow", got.drop_on_overflow ? "true" : "false",
       expected.drop_on_overflow ? "true" : "false");
  text("executor", std::string(Name(got.executor)), std::string(Name(expected.executor)));
  const auto backend = [](const GroupSpec& spec) {
    if (spec.backend != "auto") return spec.backend;
    return absl::StrCat(spec.backend, " (the CPU's: no rank names a GPU)");
  };
  text("backend", backend(got), backend(expected));
  for (const DeadlineField& field : kDeadlineFields) {
    const absl::Duration a = got.deadlines.*field.value;
    const absl::Duration b = expected.deadlines.*field.value;
    if (a == b) continue;
    out.push_back(
        {absl::StrCat("deadlines.", field.name), absl::FormatDuration(a), absl::FormatDuration(b)});
  }
  return out;
}

}  // namespace epd
