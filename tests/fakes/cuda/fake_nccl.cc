#include "tests/fakes/cuda/fake_nccl.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace epd::cuda {
namespace {

FakeNccl* g_nccl = nullptr;

uint64_t NumberOf(const NcclUniqueId& id) {
  uint64_t number = 0;
  std::memcpy(&number, id.bytes, sizeof number);
  return number;
}

}  // namespace

FakeNccl& FakeNccl::Get() {
  if (g_nccl == nullptr) {
    std::fprintf(stderr, "a call to NCCL, and no FakeNccl lives\n");
    std::abort();
  }
  return *g_nccl;
}

NcclUniqueId FakeNccl::IdOf(uint64_t number) {
  NcclUniqueId id = {};
  std::memcpy(id.bytes, &number, sizeof number);
  return id;
}

FakeNccl::FakeNccl() {
  g_nccl = this;
  table_.get_version = +[](int* version) {
    *version = 23007;
    return kNcclSuccess;
  };
  table_.get_error_string = +[](NcclResult code) {
    return code == kNcclRemoteError ? "remote process exited" : "unhandled system error";
  };
  table_.init_rank =
      +[](NcclComm* comm, int num_ranks, NcclUniqueId id, int rank, NcclConfig* config) {
        FakeNccl& n = Get();
        n.AwaitLetGo("ncclCommInitRankConfig");
        const std::lock_guard lock(n.mutex_);
        if (const NcclResult code = n.Enter("ncclCommInitRankConfig"); code != kNcclSuccess)
          return code;
        *comm = reinterpret_cast<NcclComm>(n.next_++);
        Member& member = n.members_[*comm];
        member.id = NumberOf(id);
        member.rank = rank;
        member.num_ranks = num_ranks;
        if (config->blocking != 0) n.Violation("ncclCommInitRankConfig", member, "it blocks");
        return kNcclInProgress;
      };
  table_.get_async_error = +[](NcclComm comm, NcclResult* state) {
    FakeNccl& n = Get();
    const std::lock_guard lock(n.mutex_);
    *state = n.Enter("ncclCommGetAsyncError");
    const Member* member = n.Find(comm, "ncclCommGetAsyncError");
    if (member == nullptr || *state != kNcclSuccess) return kNcclSuccess;
    const std::vector<const Member*> peers = n.Peers(*member);
    const bool all_finalized = std::all_of(peers.begin(), peers.end(), [](const Member* peer) {
      return peer->finalized || peer->destroyed;
    });
    if (!n.Complete(*member) || (member->finalized && !all_finalized)) *state = kNcclInProgress;
    return kNcclSuccess;
  };
  table_.finalize = +[](NcclComm comm) {
    FakeNccl& n = Get();
    const std::lock_guard lock(n.mutex_);
    Member* member = n.Find(comm, "ncclCommFinalize");
    if (member == nullptr) return 4;
    member->finalized = true;
    for (const Member* peer : n.Peers(*member)) {
      if (peer->dead) {
        n.Violation("ncclCommFinalize", *member, absl::StrCat("rank ", peer->rank, " is dead"));
      }
    }
    if (const NcclResult code = n.Enter("ncclCommFinalize"); code != kNcclSuccess) return code;
    return kNcclInProgress;
  };
  table_.destroy = +[](NcclComm comm) {
    FakeNccl& n = Get();
    const std::lock_guard lock(n.mutex_);
    Member* member = n.Find(comm, "ncclCommDestroy");
    if (member == nullptr) return 4;
    for (const Member* peer : n.Peers(*member)) {
      if (peer->dead && !peer->finalized && !peer->destroyed) {
        n.Violation("ncclCommDestroy", *member, absl::StrCat("rank ", peer->rank, " is dead"));
      }
      if (peer->aborted) {
        n.Violation("ncclCommDestroy", *member, absl::StrCat("rank ", peer->rank, " has aborted"));
      }
    }
    if (const NcclResult code = n.Enter("ncclCommDestroy"); code != kNcclSuccess) return code;
    member->destroyed = true;
    return kNcclSuccess;
  };
  table_.abort = +[](NcclComm comm) {
    FakeNccl& n = Get();
    n.AwaitLetGo("ncclCommAbort");
    const std::lock_guard lock(n.mutex_);
    n.Enter("ncclCommAbort");
    Member* member = n.Find(comm, "ncclCommAbort");
    if (member == nullptr) return 4;
    member->aborted = true;
    return kNcclSuccess;
  };
  table_.group_start = +[]() {
    FakeNccl& n = Get();
    const std::lock_guard lock(n.mutex_);
    if (const NcclResult code = n.Enter("ncclGroupStart"); code != kNcclSuccess) return code;
    ++n.group_depth_;
    return kNcclSuccess;
  };
  table_.group_end = +[]() { return Get().EndGroup(); };
  table_.send = +[](const void*, size_t bytes, int, int peer, NcclComm comm, Stream) {
    return Get().Transferred(comm, "ncclSend", {.is_send = true, .peer = peer, .bytes = bytes});
  };
  table_.receive = +[](void*, size_t bytes, int, int peer, NcclComm comm, Stream) {
    return Get().Transferred(comm, "ncclRecv", {.is_send = false, .peer = peer, .bytes = bytes});
  };
}

FakeNccl::~FakeNccl() { g_nccl = nullptr; }

void FakeNccl::Hold(const std::string& function) {
  const std::lock_guard lock(mutex_);
  held_ = function;
}

void FakeNccl::LetGo() {
  const std::lock_guard lock(mutex_);
  held_.clear();
  let_go_.notify_all();
}

int FakeNccl::num_held() const {
  const std::lock_guard lock(mutex_);
  return num_held_;
}

void FakeNccl::AwaitLetGo(const char* function) {
  constexpr auto kLimit = std::chrono::seconds(60);
  std::unique_lock lock(mutex_);
  ++num_held_;
  if (!let_go_.wait_for(lock, kLimit, [&] { return held_ != function; })) {
    violations_.push_back(absl::StrCat(function, ": held for a minute"));
  }
  --num_held_;
}

void FakeNccl::Fail(const std::string& function, NcclResult code, int skip) {
  const std::lock_guard lock(mutex_);
  failures_[function] = {skip, code};
}

NcclResult FakeNccl::Enter(const char* function) {
  calls_.push_back(function);
  const auto found = failures_.find(function);
  if (found == failures_.end() || found->second.first-- > 0) return kNcclSuccess;
  const NcclResult code = found->second.second;
  failures_.erase(found);
  return code;
}

void FakeNccl::Kill(uint64_t id, int rank) {
  const std::lock_guard lock(mutex_);
  for (auto& [comm, member] : members_) {
    if (member.id == id && member.rank == rank) member.dead = true;
  }
}

FakeNccl::Member* FakeNccl::Find(NcclComm comm, const char* function) {
  const auto found = members_.find(comm);
  if (found == members_.end()) {
    violations_.push_back(absl::StrCat(function, ": no communicator"));
    return nullptr;
  }
  Member& member = found->second;
  if (member.destroyed || member.aborted) {
    Violation(function, member, member.aborted ? "it was aborted" : "it was destroyed");
    return nullptr;
  }
  return &member;
}

void FakeNccl::Violation(const char* function, const Member& member, const std::string& what) {
  violations_.push_back(
      absl::StrCat(function, " of id ", member.id, " rank ", member.rank, ": ", what));
}

std::vector<const FakeNccl::Member*> FakeNccl::Peers(const Member& member) const {
  std::vector<const Member*> peers;
  for (const auto& [comm, other] : members_) {
    if (other.id == member.id && other.rank != member.rank) peers.push_back(&other);
  }
  return peers;
}

// A rank that died after all had entered has entered all the same.
bool FakeNccl::Complete(const Member& member) const {
  return static_cast<int>(Peers(member).size()) + 1 == member.num_ranks;
}

NcclResult FakeNccl::Transferred(NcclComm comm, const char* function, Transfer transfer) {
  const std::lock_guard lock(mutex_);
  if (const NcclResult code = Enter(function); code != kNcclSuccess) return code;
  Member* member = Find(comm, function);
  if (member == nullptr) return 4;
  if (group_depth_ == 0) Violation(function, *member, "outside of a group");
  if (transfer.bytes == 0) Violation(function, *member, "no bytes");
  if (!Complete(*member)) Violation(function, *member, "not all ranks have entered");
  grouped_[comm].push_back(transfer);
  return kNcclSuccess;
}

NcclResult FakeNccl::EndGroup() {
  const std::lock_guard lock(mutex_);
  const NcclResult code = Enter("ncclGroupEnd");
  if (group_depth_ == 0) violations_.push_back("ncclGroupEnd: no group");
  group_depth_ = std::max(0, group_depth_ - 1);
  if (group_depth_ > 0) return code;
  for (auto& [comm, transfers] : grouped_) {
    members_.at(comm).groups.push_back(std::move(transfers));
  }
  grouped_.clear();
  return code;
}

std::string FakeNccl::PairUp() const {
  const std::lock_guard lock(mutex_);
  for (const auto& [comm, member] : members_) {
    for (const Member* peer : Peers(member)) {
      const size_t both = std::min(member.groups.size(), peer->groups.size());
      for (size_t i = 0; i < both; ++i) {
        for (const Transfer& mine : member.groups[i]) {
          if (mine.peer != peer->rank) continue;
          const Transfer wanted = {
              .is_send = !mine.is_send, .peer = member.rank, .bytes = mine.bytes};
          const auto& theirs = peer->groups[i];
          if (std::find(theirs.begin(), theirs.end(), wanted) != theirs.end()) continue;
          return absl::StrCat("group ", i, " of rank ", member.rank, ": ", mine.bytes,
                              " bytes have no partner on rank ", peer->rank);
        }
      }
    }
  }
  return "";
}

int FakeNccl::CountCalls(const std::string& function) const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(std::count(calls_.begin(), calls_.end(), function));
}

std::vector<int> FakeNccl::SurvivorsThatDidNotAbort(uint64_t id) const {
  const std::lock_guard lock(mutex_);
  std::vector<int> survivors;
  bool any_dead = false;
  for (const auto& [comm, member] : members_) {
    if (member.id != id) continue;
    any_dead = any_dead || member.dead;
    if (!member.dead && !member.aborted) survivors.push_back(member.rank);
  }
  return any_dead ? survivors : std::vector<int>{};
}

int FakeNccl::num_open() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(std::count_if(members_.begin(), members_.end(), [](const auto& entry) {
    const Member& member = entry.second;
    return !member.dead && !member.destroyed && !member.aborted;
  }));
}

}  // namespace epd::cuda
