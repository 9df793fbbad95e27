// What reports and views have in common, for cluster_codec.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/core/execution.h"
#include "daemon/core/group_spec.h"
#include "daemon/core/rank_holder.h"
#include "daemon/core/worker_name.h"
#include "proto/epd/v1/cluster.pb.h"
#include "proto/epd/v1/limits.h"

namespace epd {

using ProgramCounts = google::protobuf::RepeatedPtrField<v1::ProgramCount>;

void Put(const std::vector<ExecutionCount>& counts, ProgramCounts& out);
void Put(const std::vector<ExecutionBase>& bases, ProgramCounts& out);
// INVALID_ARGUMENT: a program that has not 16 bytes.
absl::Status Get(const ProgramCounts& in, std::vector<ExecutionCount>& counts);
absl::Status Get(const ProgramCounts& in, std::vector<ExecutionBase>& bases);

// What another epd says, made clean (text.h): names, and texts that say why.
std::string GetText(const std::string& in, size_t max_bytes = limits::kNameBytes);
// INVALID_ARGUMENT: more than `max_bytes`.
absl::Status GetBytes(const std::string& in, size_t max_bytes, const char* field, std::string& out);
inline constexpr size_t kUniqueIdBytes = 128;
inline constexpr size_t kDigestBytes = 32;
// Of host:port,port.
inline constexpr size_t kAddressBytes = 512;

// "cpu", "cuda:0"; empty, of an older epd: `name` stays as it is. INVALID_ARGUMENT: no worker's name.
absl::Status GetName(const std::string& in, const char* field, WorkerName& name);

v1::ClusterMember ToProto(const RankHolder& holder);
// INVALID_ARGUMENT: as GetName.
absl::Status Get(const v1::ClusterMember& in, RankHolder& holder);

v1::ClusterMemberColumns ToColumns(const std::vector<RankHolder>& members);
// INVALID_ARGUMENT: the columns are not equally long, or an index is out of range.
absl::Status Get(const v1::ClusterMemberColumns& in, std::vector<RankHolder>& members);

// A spec that another epd has filled in and validated.
absl::Status Get(const v1::GroupSpec& in, GroupSpec& spec);

// Enums whose protos are shifted by one, to keep 0 for "unspecified". INVALID_ARGUMENT: out of
// range.
template <typename To>
absl::Status GetEnum(int value, To last, const char* name, To& out) {
  if (value < 1 || value > static_cast<int>(last) + 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": got ", value, ", expected 1 to ", static_cast<int>(last) + 1));
  }
  out = static_cast<To>(value - 1);
  return absl::OkStatus();
}

}  // namespace epd
