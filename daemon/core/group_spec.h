// What the ranks of a group must agree on, and how to say where they do not.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/ids.h"
#include "daemon/core/shared_list.h"
#include "proto/epd/v1/backends.h"

namespace epd {

enum class Dtype { kUnspecified = 0, kFloat32 = 1, kBfloat16 = 2, kFloat16 = 3 };

// Who moves the rows. kDefault: the backend's choice (client on cpu, worker on cuda).
enum class Executor { kDefault = 0, kClient = 1, kWorker = 2 };

std::string_view Name(Dtype dtype);
std::string_view Name(Executor executor);

// Bytes of one element; 0 for kUnspecified.
int SizeBytes(Dtype dtype);

// How long things may take before somebody is told. All are positive.
struct Deadlines {
  absl::Duration warn_after = absl::Seconds(20);  // A living but absent rank is named in the log,
  absl::Duration absent = absl::Minutes(10);      // ... and then fails the operation.
  absl::Duration undecided = absl::Seconds(30);   // From admission to an outcome.
  absl::Duration form = absl::Minutes(5);         // Forming or re-forming the group.

  friend bool operator==(const Deadlines&, const Deadlines&) = default;
};

// Every deadline, by its name in attach.proto: checks, comparisons and codecs go by this table.
struct DeadlineField {
  const char* name;
  absl::Duration Deadlines::*value;
};
inline constexpr DeadlineField kDeadlineFields[] = {
    {"warn_after", &Deadlines::warn_after},
    {"absent", &Deadlines::absent},
    {"undecided", &Deadlines::undecided},
    {"form", &Deadlines::form},
};

// The contract of a group. Every rank's Join brings one; all must be equal.
struct GroupSpec {
  std::string name;  // 1 to 200 printable ASCII characters, no spaces.
  // One run of the job; ranks of different instances never meet. May be empty.
  std::string instance;
  std::string tenant;  // One set of sessions, one per rank. Empty: the default tenant.
  uint32_t num_ranks = 0;
  uint32_t num_experts = 0;
  SharedList<Rank>
      expert_owner;  // [num_experts]; empty: contiguous blocks of num_experts / num_ranks.
  uint32_t max_tokens_per_rank = 0;
  uint32_t recv_capacity_per_rank = 0;  // Slots of a receive buffer.
  uint32_t hidden = 0;                  // Elements of a token row.
  uint32_t top_k = 0;                   // Largest top-k of any call; 0: no limit but limits::kTopK.
  uint32_t alignment = 1;               // Slots; each expert's zone starts at a multiple of it.
  Dtype max_token_dtype = Dtype::kUnspecified;
  bool drop_on_overflow = false;
  Executor executor = Executor::kDefault;
  std::string backend = "auto";  // One of kBackends (proto/epd/v1/backends.h).
  Deadlines deadlines;

  // Of its backend; those of "auto" where the name is none.
  const BackendTraits& traits() const;
  bool on_device() const { return traits().on_device; }  // Its staging is memory of GPUs.
  friend bool operator==(const GroupSpec&, const GroupSpec&) = default;
};

// OK when the spec can be served.
//   INVALID_ARGUMENT  names the field, what was got and what is allowed.
absl::Status Validate(const GroupSpec& spec);
// OK when this release's workers can serve it, too.
//   UNIMPLEMENTED     more ranks than a worker serves
//   INVALID_ARGUMENT  beyond what the backend's library can do (nccl_ep_limits.h)
absl::Status CheckServed(const GroupSpec& spec);

// "moe", or "moe tenant=b": how messages name one tenant of a group after "group=".
std::string Title(const GroupSpec& spec);

// What all tenants of a group have in common: `spec` without the tenant and its run of a job.
GroupSpec Contract(GroupSpec spec);

// Bytes of the widest row that is summed.
uint64_t RowBytes(const GroupSpec& spec);

// The rank that owns `expert` (< num_experts) of a valid spec.
Rank ExpertOwner(const GroupSpec& spec, uint32_t expert);

// One field in which two specs differ, with both values in a form for people.
struct FieldDifference {
  std::string field;
  std::string got;
  std::string expected;

  friend bool operator==(const FieldDifference&, const FieldDifference&) = default;
};

// Every field in which `got` differs from `expected`, in the order of the struct; empty when they
// are equal.
std::vector<FieldDifference> Differences(const GroupSpec& got, const GroupSpec& expected);

}  // namespace epd
