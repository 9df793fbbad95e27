#include "daemon/rpc/cluster/cluster_parts.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "daemon/codec/codec.h"
#include "proto/epd/v1/text.h"

namespace epd {
namespace {

v1::ProgramCount& PutOne(Rank rank, const ProgramId& program, uint64_t count, ProgramCounts& out) {
  v1::ProgramCount& added = *out.Add();
  added.set_rank(rank.value);
  added.set_program(std::string(program.begin(), program.end()));
  added.set_count(count);
  return added;
}

absl::Status GetProgram(const v1::ProgramCount& in, ProgramId& program) {
  if (in.program().size() != program.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("program: got ", in.program().size(), " bytes, expected ", program.size()));
  }
  std::copy(in.program().begin(), in.program().end(), program.begin());
  return absl::OkStatus();
}

}  // namespace

void Put(const std::vector<ExecutionCount>& counts, ProgramCounts& out) {
  for (const ExecutionCount& count : counts)
    PutOne(count.rank, count.program, count.begun, out).set_failed(count.failed);
}

void Put(const std::vector<ExecutionBase>& bases, ProgramCounts& out) {
  for (const ExecutionBase& base : bases) PutOne(base.rank, base.program, base.base, out);
}

absl::Status Get(const ProgramCounts& in, std::vector<ExecutionCount>& counts) {
  for (const v1::ProgramCount& one : in) {
    ExecutionCount count{Rank(one.rank()), {}, one.count(), one.failed()};
    if (absl::Status bad = GetProgram(one, count.program); !bad.ok()) return bad;
    counts.push_back(count);
  }
  return absl::OkStatus();
}

absl::Status Get(const ProgramCounts& in, std::vector<ExecutionBase>& bases) {
  for (const v1::ProgramCount& one : in) {
    ExecutionBase base{Rank(one.rank()), {}, one.count()};
    if (absl::Status bad = GetProgram(one, base.program); !bad.ok()) return bad;
    bases.push_back(base);
  }
  return absl::OkStatus();
}

std::string GetText(const std::string& in, size_t max_bytes) { return text::Clean(in, max_bytes); }

absl::Status GetBytes(const std::string& in, size_t max_bytes, const char* field,
                      std::string& out) {
  if (in.size() > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": got ", in.size(), " bytes, expected at most ", max_bytes));
  }
  out = in;
  return absl::OkStatus();
}

absl::Status GetName(const std::string& in, const char* field, WorkerName& name) {
  if (in.empty()) return absl::OkStatus();
  const std::optional<WorkerName> parsed = ParseWorkerName(in);
  if (!parsed.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": got '", GetText(in), "', expected cpu or cuda:0"));
  }
  name = *parsed;
  return absl::OkStatus();
}

v1::ClusterMember ToProto(const RankHolder& holder) {
  v1::ClusterMember member;
  PutHolder(holder, member);
  member.set_session_id(holder.session.value);
  member.set_arena_index(holder.arena_index);
  member.set_client_version(holder.client_version);
  member.set_worker(ToString(holder.worker));
  member.set_started(holder.started);
  return member;
}

absl::Status Get(const v1::ClusterMember& member, RankHolder& holder) {
  holder.rank = Rank(member.rank());
  holder.node = NodeId{GetText(member.node())};
  holder.session = SessionId(member.session_id());
  holder.arena_index = member.arena_index();
  holder.host = GetText(member.host());
  holder.pid = member.pid();
  holder.client_name = GetText(member.client_name());
  holder.client_version = GetText(member.client_version());
  holder.started = member.started();
  return GetName(member.worker(), "member.worker", holder.worker);
}

v1::ClusterMemberColumns ToColumns(const std::vector<RankHolder>& members) {
  v1::ClusterMemberColumns out;
  absl::flat_hash_map<absl::string_view, uint32_t> known;
  const auto index_of = [&](const std::string& text) {
    const auto [at, fresh] = known.try_emplace(text, static_cast<uint32_t>(out.texts_size()));
    if (fresh) out.add_texts(text);
    return at->second;
  };
  std::map<WorkerName, uint32_t> of_worker;  // The names are made here: `known` would borrow them.
  const auto index_of_worker = [&](const WorkerName& worker) {
    const auto [at, fresh] = of_worker.try_emplace(worker, static_cast<uint32_t>(out.texts_size()));
    if (fresh) out.add_texts(ToString(worker));
    return at->second;
  };
  const bool on_gpus =
      absl::c_any_of(members, [](const RankHolder& member) { return member.worker.on_gpu(); });
  for (const RankHolder& member : members) {
    if (on_gpus) out.add_workers(index_of_worker(member.worker));
    out.add_ranks(member.rank.value);
    out.add_sessions(member.session.value);
    out.add_arena_indices(member.arena_index);
    out.add_pids(member.pid);
    out.add_nodes(index_of(member.node.value));
    out.add_hosts(index_of(member.host));
    out.add_client_names(index_of(member.client_name));
    out.add_client_versions(index_of(member.client_version));
  }
  return out;
}

absl::Status Get(const v1::ClusterMemberColumns& in, std::vector<RankHolder>& members) {
  const int num = in.ranks_size();
  for (const int other :
       {in.sessions_size(), in.arena_indices_size(), in.pids_size(), in.nodes_size(),
        in.hosts_size(), in.client_names_size(), in.client_versions_size()}) {
    if (other == num) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("member_columns: got columns of ", num, " and ", other, " members"));
  }
  if (in.workers_size() != 0 && in.workers_size() != num) {
    return absl::InvalidArgumentError(absl::StrCat("member_columns: got columns of ", num, " and ",
                                                   in.workers_size(), " members"));
  }
  absl::Status status;
  const auto text = [&](uint32_t index) {
    if (index < static_cast<uint32_t>(in.texts_size()))
      return GetText(in.texts(static_cast<int>(index)));
    status = absl::InvalidArgumentError(
        absl::StrCat("member_columns: got text ", index, ", expected one of ", in.texts_size()));
    return std::string();
  };
  members.reserve(members.size() + static_cast<size_t>(num));
  for (int i = 0; i < num; ++i) {
    RankHolder& member = members.emplace_back();
    member.rank = Rank(in.ranks(i));
    member.session = SessionId(in.sessions(i));
    member.arena_index = in.arena_indices(i);
    member.pid = in.pids(i);
    member.node = NodeId{text(in.nodes(i))};
    member.host = text(in.hosts(i));
    member.client_name = text(in.client_names(i));
    member.client_version = text(in.client_versions(i));
    if (in.workers_size() != 0)
      status.Update(GetName(text(in.workers(i)), "member_columns.workers", member.worker));
  }
  return status;
}

absl::Status Get(const v1::GroupSpec& in, GroupSpec& spec) {
  absl::StatusOr<GroupSpec> parsed = FromProto(in, SpecDefaults());
  if (!parsed.ok()) return parsed.status();
  spec = *std::move(parsed);
  return Validate(spec);
}

}  // namespace epd
