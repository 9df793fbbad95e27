// Session: joining and leaving groups, and what epd says about them.
#include <sys/stat.h>

#include <algorithm>
#include <new>
#include <tuple>

#include "client/c/attach_messages.h"
#include "client/c/direct_wait.h"
#include "client/c/interrupt.h"
#include "client/c/join_wait.h"
#include "client/c/numa_node.h"
#include "client/c/running_deadline.h"
#include "client/c/session.h"
#include "proto/epd/v1/features.h"
#include "proto/epd/v1/region_layout.h"
#include "proto/failpoint/failpoint.h"

#ifndef XXH_INLINE_ALL  // The build rule of xxhash may have set it.
#define XXH_INLINE_ALL
#endif
#include <xxhash.h>

namespace epd::client {
namespace {

constexpr std::chrono::seconds kLeaveDeadline{10};
constexpr size_t kMaxWhyBytes = 1024;  // Of Leave.
// How long the reason of a session's end may take to be read.
constexpr std::chrono::seconds kGoodbyeGrace{1};

// How messages name the group, as the daemon does.
std::string Title(const GroupSpec& spec) {
  return spec.tenant.empty() ? spec.name : spec.name + " tenant=" + spec.tenant;
}

// A landing arena is always a memfd.
bool NeedsDescriptor(const JoinedArena& arena) {
  return arena.sharing != ArenaSharing::kDeviceHandle || !arena.landing_ranks.empty();
}

Status CheckDescriptors(const Joined& joined, size_t num_fds) {
  const auto num_arenas = static_cast<size_t>(
      std::count_if(joined.arenas.begin(), joined.arenas.end(), &NeedsDescriptor));
  if (num_fds == 2 * joined.slots.size() + num_arenas) return {};
  return MakeStatus(Code::kDataLoss,
                    "the daemon announced %zu arenas with descriptors and slots of %zu workers, "
                    "and sent %zu descriptors",
                    num_arenas, joined.slots.size(), num_fds);
}

// Ranks agree in their calls on this.
uint64_t HashOf(GroupSpec spec) {
  spec.deadlines = {};
  const std::string bytes = EncodeGroupSpec(spec);
  return XXH3_64bits(bytes.data(), bytes.size());
}

// All of it but its memory.
Status Describe(const Joined& joined, const PlanIds& carried, Formation& formation) {
  const uint32_t num_ranks = joined.spec.num_ranks;
  if (num_ranks == 0 || num_ranks > static_cast<uint32_t>(kMaxRanks)) {
    return MakeStatus(Code::kDataLoss, "the daemon joined us to a group of %u ranks", num_ranks);
  }
  formation.group_id = joined.group_id;
  formation.epoch = joined.epoch;
  formation.formation = joined.formation;
  formation.plan_ids = {.group_id = joined.group_id, .epoch = joined.epoch};
  formation.carried_plans = carried;
  // On a device plans are renamed where they are (client/cuda/carried_plans.h).
  if (carried.group_id != 0 && !IsOnDevice(joined.spec)) formation.plan_ids = carried;
  formation.spec = joined.spec;
  formation.spec_hash = HashOf(joined.spec);
  for (const uint32_t owner : joined.spec.expert_owner) {
    formation.expert_owner.push_back(static_cast<int32_t>(owner));
  }
  if (const KernelError error = CheckRoutingSpec(formation.Routing(1, 1)); !error.ok()) {
    return MakeStatus(Code::kDataLoss, "the daemon's group spec is malformed: %s",
                      ToString(error).c_str());
  }
  for (const JoinedMember& member : joined.members) {
    if (member.node != joined.members[0].node) formation.several_nodes = true;
  }
  formation.stream_region_offset = joined.stream_region_offset;
  formation.stream_region_bytes = joined.stream_region_bytes;
  formation.spin = SpinTime(num_ranks + 1);
  formation.direct_wait = DirectWaitFor(num_ranks);
  formation.goes_direct = DirectIsOn() && !formation.several_nodes;
  return {};
}

// Only whoever has a device's context can map it.
void TakeDeviceMemory(const JoinedArena& arena, UniqueFd fd, Formation::Arena* taken) {
  auto memory = std::make_shared<DeviceMemory>();
  memory->bytes = arena.bytes;
  memory->fd = std::move(fd);
  memory->handle = arena.handle;
  memory->uuid = arena.device_uuid;
  taken->own = arena.own;
  taken->device = std::move(memory);
}

}  // namespace

Status Session::JoinGroup(Join join, const PlanIds& carried, std::shared_ptr<Group>* out) {
  try {
    return TryJoinGroup(std::move(join), carried, out);
  } catch (const std::bad_alloc&) {
    LoseForMemory();  // epd may count on this rank already.
    throw;
  }
}

Status Session::LeaveGroup(Group& group) {
  try {
    return TryLeaveGroup(group);
  } catch (const std::bad_alloc&) {
    LoseForMemory();  // epd may not have heard of it.
    throw;
  }
}

Status Session::TryJoinGroup(Join join, const PlanIds& carried, std::shared_ptr<Group>* out) {
  if (InForkedChild()) return BeforeCall();
  auto group =
      std::make_shared<Group>(Title(join.spec), join.ranks, [this](const Drained& drained) {
        // A failed send means that the session is ending; the reader will see that.
        EPD_FAILPOINT_SEND("client.drained.send",
                           static_cast<void>(socket_.Send(EncodeClientMessage(drained))));
      });
  const Clock::time_point deadline = Clock::now() + JoinWait(join, attached_);
  MutexLock lock(mutex_);
  if (!lost_.ok()) return lost_;
  const uint64_t id = join.request_id = ++last_request_id_;
  pending_[id].group = group;
  pending_[id].carried = carried;
  const auto done = [&] {
    mutex_.AssertHeld();
    return pending_[id].done;
  };
  Status sent;
  EPD_FAILPOINT_SEND("client.join.send", sent = socket_.Send(EncodeClientMessage(join)));
  EPD_FAILPOINT("client.join.sent");
  // A session that takes no message has ended, and why was said before.
  if (!sent.ok()) Await(Clock::now() + kGoodbyeGrace, done);
  const Interrupts interrupts;
  RunningDeadline limit(deadline, Clock::now());
  while (sent.ok() && lost_.ok() && !done() && !interrupts.any() && !limit.Passed(Clock::now()))
    Await(std::min(limit.NextLook(), Clock::now() + kInterruptLook), done);
  const PendingRequest request = pending_[id];
  pending_.erase(id);
  if (request.done && request.status.ok()) {
    *out = std::move(group);
    return {};
  }
  if (request.done) return WithCode(request.status);
  if (!lost_.ok()) return lost_;
  if (!sent.ok()) return WithCode(sent);
  if (interrupts.any()) {
    lock.Unlock();
    return WithCode(EndInterrupted());
  }
  return WithCode(MakeStatus(Code::kDeadlineExceeded,
                             "group=%s: the daemon did not answer the join in time",
                             Title(join.spec).c_str()));
}

Status Session::TryLeaveGroup(Group& group) {
  const std::shared_ptr<const Formation> last = group.current();
  RunningDeadline limit(Clock::now() + kLeaveDeadline, Clock::now());
  MutexLock lock(mutex_);
  Status result = lost_;
  if (result.ok() && last != nullptr && groups_.count(last->group_id) != 0) {
    groups_.erase(last->group_id);
    group.OnEnded(MakeStatus(Code::kFailedPrecondition, "the group was left"));
    const uint64_t id = ++last_request_id_;
    pending_[id];
    const auto done = [&] {
      mutex_.AssertHeld();
      return pending_[id].done;
    };
    const std::string leave = EncodeClientMessage(Leave{id, last->group_id, {}});
    EPD_FAILPOINT_SEND("client.leave.send", result = socket_.Send(leave));
    while (result.ok() && lost_.ok() && !done() && !limit.Passed(Clock::now()))
      Await(limit.NextLook(), done);
    if (result.ok()) {
      result = pending_[id].done
                   ? pending_[id].status
                   : MakeStatus(Code::kDeadlineExceeded, "the daemon did not answer Leave in time");
    }
    pending_.erase(id);
  }
  lock.Unlock();
  const Status closed =
      group.Close(MakeStatus(Code::kFailedPrecondition, "the group was left"), limit.at());
  return WithCode(result.ok() ? closed : result);
}

std::shared_ptr<Group> Session::FindGroup(uint64_t group_id) {
  MutexLock lock(mutex_);
  const auto found = groups_.find(group_id);
  return found == groups_.end() ? nullptr : found->second;
}

void Session::Finish(uint64_t request_id, Status status) {
  MutexLock lock(mutex_);
  const auto found = pending_.find(request_id);
  if (found == pending_.end()) return;
  found->second.done = true;
  found->second.status = std::move(status);
  changed_.NotifyAll();
}

Status Session::MapArena(const UniqueFd& fd, const JoinedArena& arena, Formation::Arena* mapped) {
  struct stat stat = {};
  if (fstat(fd.get(), &stat) != 0) return MakeStatus(Code::kDataLoss, "fstat of an arena failed");
  MutexLock lock(mutex_);
  std::weak_ptr<const Mapping>& known = mappings_[{stat.st_dev, stat.st_ino, arena.own}];
  mapped->own = arena.own;
  mapped->mapping = known.lock();
  if (mapped->mapping != nullptr && mapped->mapping->bytes() == arena.bytes) return {};
  Mapping mapping;
  if (Status s = Mapping::Map(fd.get(), arena.bytes, arena.own, &mapping); !s.ok()) return s;
  if (const auto node = OwnNode(); arena.own && node.has_value()) {
    static_cast<void>(PreferNode(mapping.data(), mapping.bytes(), *node));
  }
  mapped->mapping = std::make_shared<const Mapping>(std::move(mapping));
  known = mapped->mapping;
  std::erase_if(mappings_, [](const auto& entry) { return entry.second.expired(); });
  return {};
}

Status Session::TakeSlots(const Joined& joined, std::vector<UniqueFd>& fds) {
  MutexLock lock(mutex_);
  for (size_t i = 0; i < joined.slots.size(); ++i) {
    if (further_slots_.count(joined.slots[i].worker) != 0) continue;
    std::shared_ptr<SessionSlots> mapped;
    if (Status s = SessionSlots::Map(fds, 2 * i, attached_, &mapped); !s.ok()) return s;
    further_slots_.emplace(joined.slots[i].worker, std::move(mapped));
  }
  return {};
}

Status Session::FindSlots(const Joined& joined, std::vector<std::shared_ptr<SlotPool>>* slots) {
  slots->assign(joined.spec.num_ranks, {cpu_slots_, &cpu_slots_->pool()});
  MutexLock lock(mutex_);
  for (const JoinedMember& member : joined.members) {
    const bool own = member.session_id == attached_.session_id && member.node == attached_.node;
    if (!own || member.rank >= slots->size()) continue;
    if (member.worker.empty() || member.worker == kCpuWorkerName) continue;
    const auto found = further_slots_.find(member.worker);
    if (found == further_slots_.end()) {
      return MakeStatus(Code::kDataLoss, "the daemon sent no slots of worker %s, of rank %u",
                        member.worker.c_str(), member.rank);
    }
    (*slots)[member.rank] = {found->second, &found->second->pool()};
  }
  return {};
}

// Mapped once, and each rank of another node has its part.
Status Session::TakeLandingArena(const JoinedArena& arena, const UniqueFd& fd,
                                 Formation& formation) {
  const uint64_t num_parts = arena.landing_ranks.size();
  if (arena.own || arena.bytes == 0 || arena.bytes % num_parts != 0) {
    return MakeStatus(
        Code::kDataLoss, "the daemon sent a landing arena of %llu bytes for %llu ranks",
        static_cast<unsigned long long>(arena.bytes), static_cast<unsigned long long>(num_parts));
  }
  Formation::Arena part;
  if (Status s = MapArena(fd, arena, &part); !s.ok()) return s;
  part.part_bytes = arena.bytes / num_parts;
  for (const uint32_t rank : arena.landing_ranks) {
    if (rank >= formation.arenas.size()) {
      return MakeStatus(Code::kDataLoss, "the daemon sent a landing arena of rank %u of %zu", rank,
                        formation.arenas.size());
    }
    formation.arenas[rank] = part;
    part.part_offset += part.part_bytes;
  }
  return {};
}

// Of all ranks; their descriptors stand behind those of the slots, as many as are announced.
Status Session::TakeArenas(const Joined& joined, std::vector<UniqueFd>& fds, Formation& formation) {
  const uint32_t num_ranks = joined.spec.num_ranks;
  formation.arenas.resize(num_ranks);
  auto fd = fds.begin() + 2 * static_cast<std::ptrdiff_t>(joined.slots.size());
  for (const JoinedArena& arena : joined.arenas) {
    if (!arena.landing_ranks.empty()) {
      if (Status s = TakeLandingArena(arena, *fd++, formation); !s.ok()) return s;
      continue;
    }
    if (arena.rank >= num_ranks) {
      return MakeStatus(Code::kDataLoss, "the daemon sent an arena of rank %u of %u", arena.rank,
                        num_ranks);
    }
    Formation::Arena* const mapped = &formation.arenas[arena.rank];
    if (arena.sharing != ArenaSharing::kMemfd) {
      UniqueFd memory = NeedsDescriptor(arena) ? std::move(*fd++) : UniqueFd();
      // Only a CPU's stand-in for a device lets itself be mapped here.
      if (memory.valid()) (void)MapArena(memory, arena, mapped);
      TakeDeviceMemory(arena, std::move(memory), mapped);
    } else if (Status s = MapArena(*fd++, arena, mapped); !s.ok()) {
      return s;
    }
  }
  return {};
}

Status Session::MakeFormation(const Joined& joined, const PlanIds& carried,
                              std::vector<UniqueFd>& fds, std::shared_ptr<const Formation>* out) {
  if (Status s = CheckDescriptors(joined, fds.size()); !s.ok()) return s;
  if (Status s = TakeSlots(joined, fds); !s.ok()) return s;
  auto formation = std::make_shared<Formation>();
  if (Status s = Describe(joined, carried, *formation); !s.ok()) return s;
  formation->counts_of_own_experts = (attached_.features & features::kTakesCountsOfOwnExperts) != 0;
  if (Status s = FindSlots(joined, &formation->slots); !s.ok()) return s;
  if (Status s = TakeArenas(joined, fds, *formation); !s.ok()) return s;
  *out = std::move(formation);
  return {};
}

void Session::TakeJoined(Joined& joined, std::vector<UniqueFd>& fds, const Status& bad) {
  std::shared_ptr<Group> group;
  PlanIds carried;
  {
    MutexLock lock(mutex_);
    const auto pending = pending_.find(joined.request_id);
    if (pending != pending_.end()) {
      group = pending->second.group;
      carried = pending->second.carried;
    }
  }
  const bool first = group != nullptr;
  if (!first) group = FindGroup(joined.group_id);
  if (group == nullptr) {
    // The caller gave up meanwhile (0: the group was left meanwhile).
    if (joined.request_id != 0)
      (void)socket_.Send(EncodeClientMessage(Leave{0, joined.group_id, {}}));
    return;
  }
  std::shared_ptr<const Formation> formation;
  EPD_FAILPOINT("client.joined.received");
  Status status = bad.ok() ? MakeFormation(joined, carried, fds, &formation) : bad;
  EPD_FAILPOINT("client.joined.mapped");
  if (status.ok()) {
    group->OnJoined(std::move(formation));
    MutexLock lock(mutex_);
    if (first) groups_[joined.group_id] = group;
  } else {
    // The other ranks hear why this one takes no part.
    (void)socket_.Send(
        EncodeClientMessage(Leave{0, joined.group_id, status.message.substr(0, kMaxWhyBytes)}));
    group->OnEnded(status);
    const uint32_t rank = group->ranks().empty() ? 0 : group->ranks()[0];
    status = AtPlace(std::move(status), {group->name(), joined.epoch, rank, "join"});
  }
  if (first) Finish(joined.request_id, std::move(status));
}

void Session::Handle(JoinFailed& failed, std::vector<UniqueFd>&) {
  if (failed.status.ok())
    failed.status = MakeStatus(Code::kInternal, "the daemon refused without a reason");
  Finish(failed.request_id, std::move(failed.status));
}

void Session::Handle(Left& left, std::vector<UniqueFd>&) {
  Finish(left.request_id, std::move(left.status));
}

void Session::Handle(Reform& reform, std::vector<UniqueFd>&) {
  EPD_FAILPOINT("client.reform.received");
  if (const std::shared_ptr<Group> group = FindGroup(reform.group_id)) group->OnReform(reform);
}

void Session::Handle(GroupEnded& ended, std::vector<UniqueFd>&) {
  const std::shared_ptr<Group> group = FindGroup(ended.group_id);
  if (group == nullptr) return;
  if (ended.status.ok())
    ended.status = MakeStatus(Code::kFailedPrecondition, "the group was closed");
  group->OnEnded(ended.status);
  MutexLock lock(mutex_);
  groups_.erase(ended.group_id);
}

void Session::Handle(GroupDraining& draining, std::vector<UniqueFd>&) {
  if (const auto group = FindGroup(draining.group_id)) group->OnDraining(draining.status);
}

void Session::Handle(Goodbye& goodbye, std::vector<UniqueFd>&) {
  MutexLock lock(mutex_);
  goodbye_ = goodbye.status;
}

}  // namespace epd::client
