#include "daemon/rpc/node_api/group_watchers.h"

#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "daemon/rpc/answer.h"
#include "daemon/rpc/newest_writer.h"
#include "daemon/rpc/node_api/group_facts.h"

namespace epd {

class GroupWatch : public ServedWriter<grpc::ServerWriteReactor<v1::WatchGroupResponse>,
                                       v1::WatchGroupResponse> {
 public:
  GroupWatch(v1::WatchGroupRequest request, std::string by)
      : request_(std::move(request)), by_(std::move(by)) {}

  const std::string& name() const { return request_.name(); }
  const std::string& by() const { return by_; }
  bool Means(const GroupSpec& spec) const {
    return spec.name == request_.name() &&
           (!request_.has_tenant() || spec.tenant == request_.tenant());
  }

  // Control thread only.
  v1::Group last;        // As sent.
  std::string last_key;  // Its parts that count as a change, serialised.
  bool refused = false;

 private:
  const v1::WatchGroupRequest request_;
  const std::string by_;
};

namespace {

// Ages and traffic grow all the time; they are no reason to send.
std::string ChangeKey(v1::Group group) {
  group.clear_state_age();
  group.clear_num_operations();
  group.clear_num_failed();
  group.clear_num_failed_calls();
  group.clear_bytes_moved();
  group.clear_expert_routes();
  group.clear_num_open_operations();
  for (v1::Rank& rank : *group.mutable_ranks()) rank.clear_phase_age();
  return group.SerializeAsString();
}

}  // namespace

GroupWatchers::GroupWatchers(Node& node) : node_(node) {}
GroupWatchers::~GroupWatchers() = default;

grpc::ServerWriteReactor<v1::WatchGroupResponse>* GroupWatchers::Watch(
    const v1::WatchGroupRequest& request, const std::string& by) {
  const auto watch = std::make_shared<GroupWatch>(request, by);
  // The queue's copy keeps it alive until the control thread has it. Without the queue it ends at
  // once.
  if (const absl::Status taken = node_.loop().PostRequest([this, watch] { Begin(watch); });
      !taken.ok()) {
    watch->KeepUntilDone(watch);
    watch->End(ToGrpc(taken));
  }
  return watch.get();
}

void GroupWatchers::Begin(const std::shared_ptr<GroupWatch>& watch) {
  const absl::Status room = CheckRoom();
  watch->refused = !room.ok();
  watches_.push_back(watch);
  if (watch->refused) {
    watch->End(ToGrpc(room));
    return;
  }
  UpdateOne(*watch);
}

absl::Status GroupWatchers::CheckRoom() const {
  size_t num_open = 0;
  std::map<std::string, size_t> holders;
  for (const auto& watch : watches_) {
    if (watch->refused || watch->done()) continue;
    ++num_open;
    ++holders[watch->by()];
  }
  if (num_open < node_.settings().max_watchers) return absl::OkStatus();
  const auto most = absl::c_max_element(
      holders, [](const auto& a, const auto& b) { return a.second < b.second; });
  return absl::ResourceExhaustedError(
      absl::StrCat(num_open, " streams of WatchGroup are open, this node's limit (max_watchers), ",
                   most->second, " of them by ", most->first, "; end some, or raise it"));
}

void GroupWatchers::UpdateOne(GroupWatch& watch) {
  const std::vector<GroupStatus> groups = KnownGroups(node_);
  const auto found = absl::c_find_if(groups, [&](const GroupStatus& group) {
    const bool same_one = watch.last.group_id() == 0 || watch.last.group_id() == group.id.value;
    return watch.Means(group.spec) && same_one;
  });
  v1::WatchGroupResponse response;
  if (found != groups.end()) {
    v1::Group group = DescribeGroup(node_, *found);
    std::string key = ChangeKey(group);
    if (key == watch.last_key) return;
    watch.last_key = std::move(key);
    watch.last = group;
    *response.mutable_group() = std::move(group);
    return watch.Offer(std::move(response));
  }
  if (watch.last.group_id() == 0) {
    watch.End(ToGrpc(NoSuchGroup(node_, watch.name())));
    return;
  }
  watch.last.set_state(v1::GROUP_STATE_CLOSED);
  *response.mutable_group() = watch.last;
  watch.Offer(std::move(response));
  watch.End(grpc::Status::OK);
}

void GroupWatchers::Update() {
  std::erase_if(watches_, [](const auto& watch) { return watch->done(); });
  for (const auto& watch : watches_) {
    if (!watch->refused) UpdateOne(*watch);
  }
}

void GroupWatchers::FinishAll(const absl::Status& status) {
  for (const auto& watch : watches_) watch->End(ToGrpc(status));
}

}  // namespace epd
