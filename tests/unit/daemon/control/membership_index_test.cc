// Goal: what is kept of all Joins as they come and go is what looking at each of them gives.
#include "daemon/control/node/membership_index.h"

#include <gtest/gtest.h>

#include <random>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "daemon/control/node/membership_table.h"
#include "tests/unit/daemon/control/small_cluster.h"

namespace epd {
namespace {

constexpr uint64_t kSessions = 12;
constexpr uint64_t kNames = 5;

std::map<uint32_t, UidUse> CountAnew(const Memberships& all) {
  std::map<uint32_t, UidUse> uses;
  std::set<std::pair<uint32_t, std::string>> of_uid;
  std::set<std::tuple<uint32_t, int32_t, std::string>> of_pid;
  for (const auto& [key, member] : all) {
    const std::string& group = member.claim.spec.name;
    UidUse& use = uses[member.uid];
    UidShare& share = use.of_pid[member.claim.pid];
    if (member.held() && of_uid.emplace(member.uid, group).second) ++use.all.groups;
    if (member.held() && of_pid.emplace(member.uid, member.claim.pid, group).second) ++share.groups;
    for (UidShare* sum : {&use.all, &share}) {
      sum->ranks += member.claim.ranks.size();
      sum->table_entries += member.claim.spec.expert_owner.size();
    }
  }
  return uses;
}

std::vector<uint64_t> Numbers(const UidUse& use) {
  std::vector<uint64_t> out = {use.all.groups, use.all.ranks, use.all.table_entries};
  for (const auto& [pid, share] : use.of_pid) {
    for (const uint64_t number :
         {static_cast<uint64_t>(pid), share.groups, share.ranks, share.table_entries})
      out.push_back(number);
  }
  return out;
}

void ExpectSame(const MembershipIndex& index, const Memberships& all) {
  std::map<uint32_t, std::vector<uint64_t>> got, expected;
  for (const auto& [uid, use] : index.uses()) got[uid] = Numbers(use);
  for (const auto& [uid, use] : CountAnew(all)) expected[uid] = Numbers(use);
  EXPECT_EQ(got, expected);
  std::map<GroupId, std::set<MembershipIndex::Key>> groups;
  std::set<std::string> names;
  for (const auto& [key, member] : all) {
    if (!member.held()) continue;
    names.insert(member.claim.spec.name);
    if (member.claim.group) groups[member.claim.group].insert(key);
  }
  EXPECT_EQ(index.num_names(), names.size());
  for (uint64_t name = 0; name < kNames; ++name) {
    EXPECT_EQ(index.HasName(absl::StrCat("g", name)), names.count(absl::StrCat("g", name)) > 0);
    EXPECT_EQ(index.OfGroup(GroupId(name + 1)), groups[GroupId(name + 1)]);
  }
}

class Walk {
 public:
  explicit Walk(uint32_t seed) : random_(seed) { outbox_.Begin(absl::UnixEpoch()); }

  void Step() {
    const SessionId session(Pick(kSessions) + 1);
    switch (Pick(6)) {
      case 0:
      case 1:
        return Join(session);
      case 2:
        return Answer(static_cast<ClaimDisposition>(Pick(3)));
      case 3:
        (void)members_.Leave({session, RequestId{99}, GroupId(Pick(kNames) + 1)});
        return;
      case 4:
        if (Pick(3) == 0) members_.Drop(session, absl::UnavailableError("gone"));
        return;
      case 5:
        return members_.ForgetSeen(link_.next_seq() + Pick(2) - 1);
    }
  }
  const MembershipTable& members() const { return members_; }

 private:
  uint64_t Pick(uint64_t below) { return random_() % below; }

  void Join(SessionId session) {
    JoinRequested join;
    join.session = session;
    join.request = RequestId(Pick(6) + 1);
    join.spec = SmallSpec(4, absl::StrCat("g", Pick(kNames)));
    join.spec.tenant = Pick(2) == 0 ? "" : "t";
    if (Pick(2) == 0) join.spec.expert_owner = std::vector<Rank>(join.spec.num_experts, Rank{1});
    for (uint32_t rank = 0; rank <= Pick(3); ++rank) join.ranks.emplace_back(rank);
    join.deadline = absl::UnixEpoch() + absl::Minutes(1);
    SessionAttached client;
    client.session = session;
    client.pid = static_cast<int32_t>(session.value / 2);
    client.uid = static_cast<uint32_t>(session.value % 2);
    (void)members_.Join(join, client);
  }

  void Answer(ClaimDisposition disposition) {
    const Memberships& all = members_.all();
    if (all.empty()) return;
    const auto picked = std::next(all.begin(), static_cast<int64_t>(Pick(all.size())));
    ClusterView view;
    view.claims = {{picked->first.first, picked->first.second, disposition,
                    GroupId(Pick(kNames) + 1), absl::UnavailableError("as the coordinator says")}};
    members_.TakeAnswers(view);
  }

  std::mt19937 random_;
  Outbox outbox_;
  CoordinatorLink link_{NodeOptions{}};
  LocalWorkers workers_{{kCpuWorker}, outbox_};
  MembershipTable members_{absl::ZeroDuration(), workers_, link_, outbox_};
};

TEST(MembershipIndexTest, ItSaysWhatLookingAtAllGives) {
  size_t most = 0, granted = 0;
  for (uint32_t seed = 0; seed < 30; ++seed) {
    Walk walk(seed);
    for (int step = 0; step < 300 && !testing::Test::HasFailure(); ++step) {
      walk.Step();
      ExpectSame(walk.members().index(), walk.members().all());
      most = std::max(most, walk.members().all().size());
      granted += walk.members().index().OfGroup(GroupId{1}).size();
    }
    MembershipIndex restored;
    for (const auto& [key, member] : walk.members().all()) restored.Add(member);
    ExpectSame(restored, walk.members().all());
  }
  EXPECT_GT(most, 10u);
  EXPECT_GT(granted, 100u);
}

}  // namespace
}  // namespace epd
