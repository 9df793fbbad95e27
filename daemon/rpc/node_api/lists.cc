#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/codec/codec.h"
#include "daemon/rpc/node_api/group_facts.h"
#include "daemon/rpc/node_api/node_answers.h"
#include "daemon/rpc/node_api/quotas.h"

namespace epd {
namespace {

std::map<uint64_t, std::vector<v1::Rank>> LocalRanks(const Node& node) {
  std::map<uint64_t, std::vector<v1::Rank>> by_session;
  for (const GroupStatus& group : KnownGroups(node)) {
    for (const v1::Rank& rank : DescribeRanks(node, group)) {
      if (rank.node() == node.id().value) by_session[rank.session_id()].push_back(rank);
    }
  }
  return by_session;
}

uint32_t OpenOperations(const Node& node, const std::vector<v1::Rank>& ranks) {
  std::set<uint64_t> groups;
  for (const v1::Rank& rank : ranks) groups.insert(rank.group_id());
  uint32_t count = 0;
  for (const auto& [name, entry] : node.workers()) {
    for (const auto& operation : entry->supervisor.figures().snapshot.operations()) {
      count += static_cast<uint32_t>(groups.count(operation.group_id()));
    }
  }
  return count;
}

}  // namespace

absl::Status Fill(const Node& node, const v1::GetConfigRequest&, v1::GetConfigResponse& response) {
  for (const EffectiveSetting& setting : node.parsed().effective) {
    v1::Setting& out = *response.add_settings();
    out.set_name(setting.name);
    out.set_value(setting.value);
    out.set_origin(std::string(Name(setting.origin)));
    out.set_help(setting.help);
  }
  return absl::OkStatus();
}

absl::Status Fill(const Node& node, const v1::ListGroupsRequest& request,
                  v1::ListGroupsResponse& response) {
  for (const GroupStatus& group : KnownGroups(node)) {
    if (request.name().empty() || request.name() == group.spec.name)
      *response.add_groups() = DescribeGroup(node, group);
  }
  const bool found = request.name().empty() || !response.groups().empty();
  return found ? absl::OkStatus() : NoSuchGroup(node, request.name());
}

absl::Status Fill(const Node& node, const v1::ListRanksRequest& request,
                  v1::ListRanksResponse& response) {
  bool found = request.group().empty();
  for (const GroupStatus& group : KnownGroups(node)) {
    if (!request.group().empty() && request.group() != group.spec.name) continue;
    found = true;
    for (v1::Rank& rank : DescribeRanks(node, group)) *response.add_ranks() = std::move(rank);
  }
  return found ? absl::OkStatus() : NoSuchGroup(node, request.group());
}

absl::Status Fill(const Node& node, const v1::ListSessionsRequest&,
                  v1::ListSessionsResponse& response) {
  const auto ranks = LocalRanks(node);
  for (const auto& [id, session] : node.clients().sessions()) {
    v1::Session& out = *response.add_sessions();
    out.set_session_id(id.value);
    out.set_pid(session->peer.pid);
    out.set_uid(session->peer.uid);
    out.set_host(node.identity().host);
    out.set_client_name(session->client_name);
    out.set_client_version(session->client_version);
    out.set_protocol_version(session->version);
    *out.mutable_age() = ToProto(MonotonicNow() - session->since);
    PutQuotas(node, *session, out);
    const auto held = ranks.find(id.value);
    if (held == ranks.end()) continue;
    for (const v1::Rank& rank : held->second) *out.add_ranks() = rank;
    out.set_num_open_operations(OpenOperations(node, held->second));
  }
  PutUsers(node, response);
  return absl::OkStatus();
}

}  // namespace epd
