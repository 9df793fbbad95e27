#include "daemon/backend/cuda/members/direct_peers.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/backend/move_routing.h"

namespace epd::cuda {
namespace {

// More tenants than begin to move rows at one time.
constexpr size_t kMaxUnmoved = 16;

}  // namespace

DirectPeers::DirectPeers(CudaDevice& device, const CommunicatorMember& membership,
                         std::vector<NeighbourMessage>& out)
    : device_(device), membership_(membership), out_(out), members_(membership.workers.size()) {}

// ---- who can ----

// Asked of the driver for each pair, from the side that reads.
std::string DirectPeers::FindProblem() const {
  const int self = membership_.devices[static_cast<size_t>(membership_.self)];
  if (!device_.reads_peers()) {
    return absl::StrCat("cuda:", self, " was told so (", kPeerSetting, "=no)");
  }
  if (device_.staging().sharing() != Sharing::kDescriptor) {
    return absl::StrCat("cuda:", self,
                        " shares its staging by handle, which only a descriptor can follow to "
                        "another worker (staging=vmm)");
  }
  const DriverTable& driver = device_.driver();
  Device own = 0;
  if (driver.device_get(&own, self) != kSuccess) return absl::StrCat("there is no cuda:", self);
  for (size_t i = 0; i < members_.size(); ++i) {
    if (!is_other(i)) continue;
    const int other = membership_.devices[i];
    Device peer = 0;
    int can = 0;
    const bool asked = driver.device_get(&peer, other) == kSuccess &&
                       driver.device_can_access_peer(&can, own, peer) == kSuccess;
    if (!asked || can == 0) {
      return absl::StrCat("cuda:", self, " has no peer access to cuda:", other);
    }
  }
  return "";
}

NeighbourMessage DirectPeers::For(size_t member) const {
  NeighbourMessage message;
  message.worker = membership_.workers[member];
  message.communicator = membership_.communicator;
  message.epoch = membership_.epoch;
  return message;
}

// All come to the same: what one is told, all are.
void DirectPeers::Greet(absl::Time deadline) {
  deadline_ = deadline;
  std::string problem = FindProblem();
  std::vector<NeighbourMessage> greetings;
  if (problem.empty()) {
    absl::StatusOr<RegionBoard> board = RegionBoard::Create(membership_.num_ranks);
    problem = std::string(board.status().message());
    if (board.ok()) own_.emplace(*std::move(board));
  }
  for (size_t i = 0; i < members_.size(); ++i) {
    if (!is_other(i)) continue;
    greetings.push_back(For(i));
    if (!problem.empty()) continue;
    greetings.back().fd.reset(fcntl(own_->fd(), F_DUPFD_CLOEXEC, 0));
    if (!greetings.back().fd.valid()) problem = "a worker has no descriptor left (LimitNOFILE)";
  }
  for (NeighbourMessage& greeting : greetings) {
    greeting.problem = problem;
    if (!problem.empty()) greeting.fd.reset();
    out_.push_back(std::move(greeting));
  }
  Member& self = members_[static_cast<size_t>(membership_.self)];
  self.problem = problem;
  self.heard = true;
}

void DirectPeers::Hear(NeighbourMessage message) {
  const auto from =
      std::find(membership_.workers.begin(), membership_.workers.end(), message.worker);
  if (from == membership_.workers.end()) return;
  const auto index = static_cast<size_t>(from - membership_.workers.begin());
  if (!is_other(index)) return;
  if (message.arena.has_value()) {
    if (!message.fd.valid()) return;
    const NeighbourMessage::Arena& said = *message.arena;
    Arena& arena = Hearing({said.group_id, said.formation}).of_rank[said.rank];
    if (arena.mapped.has_value()) return;
    arena.fd = std::move(message.fd);
    arena.bytes = said.bytes;
    return;
  }
  Member& member = members_[index];
  if (member.heard) return;
  member.heard = true;
  member.problem = message.problem;
  if (!member.problem.empty()) return;
  absl::StatusOr<RegionBoard> board = RegionBoard::Open(message.fd.get(), membership_.num_ranks);
  if (!board.ok()) {
    failure_ =
        absl::Status(board.status().code(),
                     absl::StrCat(Where(), ": of the worker of cuda:", membership_.devices[index],
                                  ": ", board.status().message()));
    return;
  }
  member.board.emplace(*std::move(board));
}

DirectPeers::Tenant& DirectPeers::Hearing(const TenantKey& key) {
  const auto [tenant, is_new] = tenants_.try_emplace(key);
  if (!is_new) return tenant->second;
  first_heard_.push_back(key);
  if (first_heard_.size() > kMaxUnmoved) {
    const auto oldest = tenants_.find(first_heard_.front());
    if (oldest != tenants_.end() && oldest->second.arenas == nullptr) tenants_.erase(oldest);
    first_heard_.pop_front();
  }
  return tenant->second;
}

absl::Status DirectPeers::Greeted(absl::Time now) const {
  if (!failure_.ok()) return failure_;
  std::string silent;
  for (size_t i = 0; i < members_.size(); ++i) {
    if (!membership_.is_near(i) || members_[i].heard) continue;
    absl::StrAppend(&silent, silent.empty() ? "" : ", ", "cuda:", membership_.devices[i]);
  }
  if (silent.empty()) return absl::OkStatus();
  if (now < deadline_) {
    return absl::UnavailableError(absl::StrCat(Where(), ": waits for what ", silent, " can read"));
  }
  return absl::DeadlineExceededError(absl::StrCat(
      Where(), ": of ", membership_.num_near(), " workers of this node those of ", silent,
      " have not said in time whether they can read the others' memory; see epd's log for what "
      "they do"));
}

std::string DirectPeers::Where() const {
  return absl::StrCat("group_id=", membership_.communicator, " epoch=", membership_.epoch);
}

std::string DirectPeers::problem() const {
  for (const Member& member : members_) {
    if (!member.problem.empty()) return member.problem;
  }
  return "";
}

// ---- arenas ----

absl::Status DirectPeers::Tell(const MoveGroup& group, const MoveJob& job, CudaArenas& arenas) {
  for (size_t rank = 0; rank < job.parts.size(); ++rank) {
    if (!job.parts[rank].local) continue;
    const absl::StatusOr<ArenaShare> share = arenas.Share(job.parts[rank].arena);
    if (!share.ok()) return share.status();
    for (size_t i = 0; i < members_.size(); ++i) {
      if (!is_other(i)) continue;
      NeighbourMessage message = For(i);
      message.arena = {.group_id = group.group_id,
                       .formation = group.formation,
                       .rank = static_cast<uint32_t>(rank),
                       .bytes = share->bytes};
      message.fd.reset(fcntl(share->read_write_fd, F_DUPFD_CLOEXEC, 0));
      if (!message.fd.valid()) {
        return absl::ResourceExhaustedError(
            "the worker has no descriptor left (LimitNOFILE) to share its staging with");
      }
      out_.push_back(std::move(message));
    }
  }
  return absl::OkStatus();
}

absl::Status DirectPeers::Map(Arena& arena) const {
  if (absl::Status idle = device_.streams().CheckIdle(); !idle.ok()) return idle;
  Device own = 0;
  device_.driver().device_get(&own, device_.ordinal());
  absl::StatusOr<PeerMemory> mapped =
      MapPeerMemory(device_.driver(), own, arena.fd.get(), arena.bytes);
  if (!mapped.ok()) return mapped.status();
  arena.mapped = *mapped;
  arena.fd.reset();
  return absl::OkStatus();
}

absl::Status DirectPeers::Reach(const MoveGroup& group, const MoveJob& job, CudaArenas& arenas) {
  Tenant& tenant = tenants_[{group.group_id, group.formation}];
  if (tenant.arenas != &arenas) {
    if (absl::Status told = Tell(group, job, arenas); !told.ok()) return told;
    tenant.arenas = &arenas;
  }
  for (uint32_t rank = 0; rank < job.parts.size(); ++rank) {
    if (!job.parts[rank].mapped) continue;
    const auto arena = tenant.of_rank.find(rank);
    if (arena == tenant.of_rank.end()) {
      return absl::FailedPreconditionError("the workers tell each other of their staging");
    }
    if (arena->second.mapped.has_value()) continue;
    if (absl::Status mapped = Map(arena->second); !mapped.ok()) return mapped;
  }
  return absl::OkStatus();
}

// ---- regions ----

uint64_t DirectPeers::NumTakenByAll() const {
  uint64_t taken = UINT64_MAX;
  for (size_t i = 0; i < members_.size(); ++i) {
    if (is_other(i)) taken = std::min(taken, members_[i].board->taken());
  }
  return taken;
}

void DirectPeers::Publish(uint64_t place, const MoveJob& job) {
  Unpublished one{.place = place, .ranks = {}};
  for (const MovePart& part : job.parts) {
    if (part.local) one.ranks.push_back({part.stage_offset, part.num_tokens, part.recv_capacity});
  }
  unpublished_.push_back(std::move(one));
  Poll();
}

void DirectPeers::Poll() {
  while (!unpublished_.empty()) {
    const Unpublished& next = unpublished_.front();
    if (next.place >= NumTakenByAll() + RegionBoard::kPlaces) return;
    own_->Write(next.place, next.ranks);
    unpublished_.pop_front();
  }
}

absl::Status DirectPeers::TakeRegions(uint64_t place, const MoveGroup& group, MoveJob& job,
                                      std::vector<DevicePointer>& regions) {
  std::vector<RankRegion> of_rank(job.parts.size());
  for (size_t i = 0; i < members_.size(); ++i) {
    if (!is_other(i)) continue;
    std::vector<size_t> ranks;
    for (size_t rank = 0; rank < job.parts.size(); ++rank) {
      if (group.member_of_rank[rank] == static_cast<int>(i)) ranks.push_back(rank);
    }
    std::vector<RankRegion> said(ranks.size());
    if (!members_[i].board->Read(place, absl::MakeSpan(said))) {
      waits_for_ = absl::StrCat("cuda:", membership_.devices[i]);
      return absl::UnavailableError(
          absl::StrCat("the worker of ", waits_for_, " has not said where its regions are"));
    }
    for (size_t j = 0; j < ranks.size(); ++j) of_rank[ranks[j]] = said[j];
  }
  waits_for_.clear();
  own_->SetTaken(place + 1);
  const Tenant& tenant = tenants_.at({group.group_id, group.formation});
  regions.assign(job.parts.size(), 0);
  for (size_t rank = 0; rank < job.parts.size(); ++rank) {
    MovePart& part = job.parts[rank];
    if (!part.mapped) continue;
    const RankRegion& said = of_rank[rank];
    const PeerMemory& arena = *tenant.of_rank.at(static_cast<uint32_t>(rank)).mapped;
    part.num_tokens = said.num_tokens;
    part.recv_capacity = said.recv_capacity;
    const uint64_t bytes = LayoutOf(group, job, rank, RegionStorage::kDeviceWorker).stage_bytes;
    if (part.num_tokens > group.spec.max_tokens_per_rank || said.offset > arena.bytes ||
        bytes > arena.bytes - said.offset) {
      return absl::InternalError(
          absl::StrCat(Where(), ": rank ", rank, " stages ", bytes, " bytes of ", part.num_tokens,
                       " tokens at ", said.offset, " of an arena of ", arena.bytes, " bytes"));
    }
    regions[rank] = arena.address + said.offset;
  }
  return absl::OkStatus();
}

absl::Status DirectPeers::Late() const {
  return absl::DeadlineExceededError(absl::StrCat(
      Where(),
      waits_for_.empty() ? ": an operation that had its turn did not complete"
                         : absl::StrCat(": the worker of ", waits_for_,
                                        " did not say where its rows are, and its turn had come"),
      "; the group forms again"));
}

// ---- the end ----

std::vector<PeerMemory> DirectPeers::Forget(const CudaArenas* arenas) {
  std::vector<PeerMemory> mapped;
  for (auto it = tenants_.begin(); it != tenants_.end();) {
    if (arenas != nullptr && it->second.arenas != arenas) {
      ++it;
      continue;
    }
    for (const auto& [rank, arena] : it->second.of_rank) {
      if (arena.mapped.has_value()) mapped.push_back(*arena.mapped);
    }
    it = tenants_.erase(it);
  }
  return mapped;
}

std::vector<PeerMemory> DirectPeers::TakeMapped() { return Forget(nullptr); }

}  // namespace epd::cuda
