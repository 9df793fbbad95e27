// CreateGroup, DrainGroup and CloseGroup: what operators order.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/codec/codec.h"
#include "daemon/node/random_number.h"
#include "daemon/observe/log.h"
#include "daemon/rpc/answer.h"
#include "daemon/rpc/node_api/group_facts.h"
#include "daemon/rpc/node_api/node_service.h"

namespace epd {
namespace {

using Done = RequestDeduplicator::Done;
using Answered = RequestDeduplicator::Answer;

// How long control may take to answer an order that waits for nobody.
constexpr absl::Duration kAnswerWithin = absl::Seconds(10);
// Of a caller's patience this is left for the answer that says why there is none: a coordinator that cannot be reached has
// its grace (2 s), too.
constexpr absl::Duration kForTheAnswer = absl::Seconds(3);
constexpr absl::Duration kLeastPatience = absl::Milliseconds(500);
constexpr absl::Duration kDrainWithin = absl::Seconds(30);
constexpr absl::Duration kLongestDrain = absl::Hours(24);

std::string MakeKey(const char* method, const std::string& request_id) {
  return request_id.empty() ? "" : absl::StrCat(method, "/", request_id);
}

// How long an order may take that a caller waits for: he hears why it is late, rather than nothing.
absl::Duration AnswerWithin(const grpc::ServerContextBase& context) {
  const absl::Duration left = absl::FromChrono(context.deadline()) - absl::Now();
  return std::clamp(left - kForTheAnswer, kLeastPatience, kAnswerWithin);
}

// With the store's problem, where an order could not be carried out for want of a coordinator.
absl::Status WithStoreProblem(const Node& node, const absl::Status& status) {
  const std::string& problem = node.coordination().store_problem();
  const bool late = absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status);
  if (!late || problem.empty() || absl::StrContains(status.message(), problem)) return status;
  return absl::Status(status.code(),
                      absl::StrCat(status.message(), "; this node's problem: ", problem));
}

// What an order does, for the log.
struct Audit {
  const char* order;
  std::string group;
  std::string tenant;
  std::string request_id;
  std::string by;  // UnixCallers::Describe.
};

// As `done`, after a line for the log: one per order, or per caller that repeats it.
Done Logged(Audit audit, Done done) {
  return [audit = std::move(audit), done = std::move(done)](const Answered& answer) {
    Log(LogLevel::kInfo, "order",
        {{"order", audit.order},
         {"group", audit.group},
         {"tenant", audit.tenant},
         {"request_id", audit.request_id},
         {"by", audit.by},
         {"result", absl::StatusCodeToString(answer.status.code())},
         {"why", answer.status.message()}});
    done(answer);
  };
}

// The id of the tenant that the request names, or zero, for all of them.
//   NOT_FOUND  no such group or tenant, or not any more
//   ABORTED    the request is for another epoch than the present one: names both
template <typename Request>
absl::StatusOr<GroupId> FindTenant(const Node& node, const Request& request) {
  bool found = false;
  for (const GroupStatus& group : KnownGroups(node)) {
    if (group.spec.name != request.name()) continue;
    const bool first = !std::exchange(found, true);
    if (first && request.epoch() != 0 && request.epoch() != group.epoch.value) {
      return absl::AbortedError(absl::StrCat("group=", request.name(), ": got epoch ",
                                             request.epoch(), ", expected the present one, ",
                                             group.epoch.value, "; look at the group again"));
    }
    if (!request.has_tenant()) return GroupId();
    if (group.spec.tenant == request.tenant()) return group.id;
  }
  if (!found) return NoSuchGroup(node, request.name());
  return absl::NotFoundError(absl::StrCat("group=", request.name(), " has no tenant \"",
                                          absl::CHexEscape(request.tenant()),
                                          "\"; see epctl groups"));
}

struct TenantOrder {
  RequestId number;
  GroupId tenant;
};

// An order that is new and makes sense; else `done` is called, now or later.
template <typename Request>
std::optional<TenantOrder> Begin(Node& node, const char* method, const Request& request,
                                 Done done) {
  const std::optional<RequestId> number =
      node.requests().Begin(MakeKey(method, request.request_id()), std::move(done));
  if (!number.has_value()) return std::nullopt;
  const absl::StatusOr<GroupId> tenant = FindTenant(node, request);
  if (tenant.ok()) return TenantOrder{*number, *tenant};
  node.requests().Finish(*number, {tenant.status(), GroupId()});
  return std::nullopt;
}

// The group by id or, when it is gone, what is left to say about it: name and CLOSED.
v1::Group GroupOrClosed(const Node& node, GroupId id, const std::string& name) {
  for (const GroupStatus& group : KnownGroups(node)) {
    if (group.id == id || (!id && group.spec.name == name)) return DescribeGroup(node, group);
  }
  v1::Group closed;
  closed.set_group_id(id.value);
  closed.mutable_spec()->set_name(name);
  closed.set_state(v1::GROUP_STATE_CLOSED);
  AddTotals(node, id, closed);
  return closed;
}

// The groups that an order is about, as they are before it.
template <typename Request>
std::vector<GroupStatus> Named(const Node& node, const Request& request) {
  std::vector<GroupStatus> named = KnownGroups(node);
  std::erase_if(named, [&](const GroupStatus& group) {
    return group.spec.name != request.name() ||
           (request.has_tenant() && group.spec.tenant != request.tenant());
  });
  return named;
}

void FillDrained(const Node& node, const std::vector<GroupStatus>& drained,
                 v1::DrainGroupResponse& out) {
  for (const GroupStatus& before : drained) {
    v1::Group group = GroupOrClosed(node, before.id, before.spec.name);
    group.mutable_spec()->set_tenant(before.spec.tenant);
    group.set_epoch(std::max(group.epoch(), before.epoch.value));
    *out.add_groups() = std::move(group);
  }
  if (!drained.empty()) *out.mutable_group() = out.groups(0);
}

}  // namespace

NodeService::Unary* NodeService::CreateGroup(Context* context,
                                             const v1::CreateGroupRequest* request,
                                             v1::CreateGroupResponse* response) {
  if (Unary* refused = Refused(context, *request)) return refused;
  const std::string by = gate_.callers().Describe(*context);
  return AnswerLater(context, node_, [this, context, request, response, by](const Finish& finish) {
    absl::StatusOr<GroupSpec> spec = FromProto(request->spec(), node_.spec_defaults());
    absl::Status bad = spec.status();
    if (bad.ok()) bad = Validate(*spec);
    if (bad.ok()) bad = CheckServed(*spec);
    const std::string& name = request->spec().name();
    const auto answered = [this, response, finish, name](const Answered& answer) {
      if (answer.status.ok()) *response->mutable_group() = GroupOrClosed(node_, answer.group, name);
      finish(WithStoreProblem(node_, answer.status));
    };
    const Done done =
        Logged({"create", name, request->spec().tenant(), request->request_id(), by}, answered);
    if (!bad.ok()) return done({bad, GroupId()});
    const std::optional<RequestId> number =
        node_.requests().Begin(MakeKey("create", request->request_id()), done);
    if (!number.has_value()) return;
    node_.Handle(OrderRequested{{.request = *number,
                                 .kind = OrderKind::kCreate,
                                 .spec = *std::move(spec),
                                 .proposed = GroupId(RandomNumber())},
                                MonotonicNow() + AnswerWithin(*context)});
  });
}

NodeService::Unary* NodeService::DrainGroup(Context* context, const v1::DrainGroupRequest* request,
                                            v1::DrainGroupResponse* response) {
  if (Unary* refused = Refused(context, *request)) return refused;
  const std::string by = gate_.callers().Describe(*context);
  return AnswerLater(context, node_, [this, request, response, by](const Finish& finish) {
    const auto answered = [this, request, response, finish,
                           drained = Named(node_, *request)](const Answered& answer) {
      // A worker tells once more what it did in a group that has ended.
      node_.WithFreshFigures([this, request, response, finish, drained, answer] {
        *response->mutable_group() = GroupOrClosed(node_, answer.group, request->name());
        FillDrained(node_, drained, *response);
        finish(WithStoreProblem(node_, answer.status));
      });
    };
    const std::optional<TenantOrder> order = Begin(
        node_, "drain", *request,
        Logged({"drain", request->name(), request->tenant(), request->request_id(), by}, answered));
    if (!order.has_value()) return;
    const absl::Duration asked =
        request->has_deadline() ? FromProto(request->deadline()) : kDrainWithin;
    const absl::Duration allowed = std::clamp(asked, absl::ZeroDuration(), kLongestDrain);
    node_.Handle(OrderRequested{{.request = order->number,
                                 .kind = OrderKind::kDrain,
                                 .group = order->tenant,
                                 .name = request->name()},
                                MonotonicNow() + allowed});
  });
}

NodeService::Unary* NodeService::CloseGroup(Context* context, const v1::CloseGroupRequest* request,
                                            v1::CloseGroupResponse*) {
  if (Unary* refused = Refused(context, *request)) return refused;
  const std::string by = gate_.callers().Describe(*context);
  return AnswerLater(context, node_, [this, context, request, by](const Finish& finish) {
    const auto answered = [this, finish](const Answered& answer) {
      finish(WithStoreProblem(node_, answer.status));
    };
    const std::optional<TenantOrder> order = Begin(
        node_, "close", *request,
        Logged({"close", request->name(), request->tenant(), request->request_id(), by}, answered));
    if (!order.has_value()) return;
    node_.Handle(OrderRequested{{.request = order->number,
                                 .kind = OrderKind::kClose,
                                 .group = order->tenant,
                                 .name = request->name()},
                                MonotonicNow() + AnswerWithin(*context)});
  });
}

}  // namespace epd
