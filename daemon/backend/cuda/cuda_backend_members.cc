// Groups on several GPUs: which communicators this worker is in.
#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/backend/cuda/cuda_backend.h"
#include "daemon/backend/cuda/members/direct_link.h"
#include "daemon/backend/cuda/members/mixed_link.h"
#include "daemon/backend/nccl_ep/ep_link.h"

namespace epd::cuda {
namespace {

// Of one communicator: a member greets once, and tells of arenas only when all have entered.
constexpr size_t kMaxEarly = 1024;
// A worker is told to enter before anybody greets it, so what is early is mostly of a communicator that it could not enter.
constexpr size_t kMaxEarlyCommunicators = 64;
constexpr size_t kMaxIds = 4096;

std::string Name(uint64_t communicator, uint64_t epoch) {
  return absl::StrCat("group_id=", communicator, " epoch=", epoch);
}

}  // namespace

MemberCommunicator* CudaBackend::Find(uint64_t group_id, uint64_t epoch) const {
  for (const auto& communicator : communicators_) {
    const CommunicatorMember& in = communicator->membership();
    if (in.communicator == group_id && in.epoch == epoch) return communicator.get();
  }
  return nullptr;
}

// Every node of the group is told so: the epoch before is over.
absl::Status CudaBackend::InitCommunicator(uint64_t group_id, uint64_t epoch,
                                           const std::string& unique_id) {
  if (!unique_id.empty() && unique_id.size() != sizeof(NcclUniqueId)) {
    return absl::InvalidArgumentError(absl::StrCat(Name(group_id, epoch), ": a unique id of ",
                                                   unique_id.size(), " bytes, expected ",
                                                   sizeof(NcclUniqueId), " or none"));
  }
  for (const auto& communicator : communicators_) {
    const CommunicatorMember& in = communicator->membership();
    if (in.communicator != group_id || in.epoch >= epoch) continue;
    communicator->End(absl::AbortedError(absl::StrCat(Name(group_id, in.epoch),
                                                      ": the group forms again in epoch ", epoch)),
                      now_);
  }
  std::erase_if(early_, [&](const Early& early) {
    return early.communicator == group_id && early.epoch < epoch;
  });
  KnownId known{.epoch = epoch, .id = std::nullopt};
  if (!unique_id.empty()) {
    known.id.emplace();
    std::memcpy(known.id->bytes, unique_id.data(), unique_id.size());
  }
  if (ids_.insert_or_assign(group_id, known).second) id_order_.push_back(group_id);
  if (id_order_.size() > kMaxIds) {
    ids_.erase(id_order_.front());
    id_order_.pop_front();
  }
  return absl::OkStatus();
}

absl::Status CudaBackend::Enter(const CommunicatorMember& membership, absl::Time now) {
  const std::string name = Name(membership.communicator, membership.epoch);
  if (MemberCommunicator* communicator = Find(membership.communicator, membership.epoch)) {
    if (absl::Status entered = communicator->Entered();
        !entered.ok() && !absl::IsUnavailable(entered)) {
      return absl::AbortedError(absl::StrCat(
          name, ": the communicator has ended: ", entered.message(), "; join the group again"));
    }
    ++communicator->num_users;
    return absl::OkStatus();
  }
  const auto known = ids_.find(membership.communicator);
  if (known == ids_.end() || known->second.epoch != membership.epoch || known->second.used) {
    return absl::FailedPreconditionError(absl::StrCat(
        name, ": its communicator cannot be entered, since this epoch ",
        known != ids_.end() && known->second.used ? "has had one" : "is not known here",
        "; join the group again"));
  }
  const std::string no_nccl = WhyNoNccl(known->second);
  const bool may_go_directly = membership.all_near() && !membership.library.has_value();
  if (!no_nccl.empty() && !may_go_directly) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, ": rows go by NCCL, which this worker cannot use: ", no_nccl,
                     "; see epctl doctor, or ask for backend=cpu"));
  }
  const absl::StatusOr<int> stream = FreeStream(now);
  if (!stream.ok()) return stream.status();
  communicators_.push_back(std::make_unique<MemberCommunicator>(
      *device_, MakeLink(membership, no_nccl),
      MemberCommunicator::Options{.membership = membership, .stream = *stream, .limit = limit_ / 2},
      moved_, prepared_));
  communicators_.back()->num_users = 1;
  const auto early = FindEarly(membership.communicator, membership.epoch);
  if (early != early_.end()) {
    for (NeighbourMessage& message : early->messages)
      communicators_.back()->Hear(std::move(message));
    early_.erase(early);
  }
  communicators_.back()->Begin(std::exchange(known->second.id, std::nullopt), now);
  known->second.used = true;
  return absl::OkStatus();
}

std::string CudaBackend::WhyNoNccl(const KnownId& known) const {
  if (nccl_ == nullptr) return "none was looked for";
  if (!nccl_->ok()) return nccl_->problem;
  return known.id.has_value() ? "" : "this epoch has no unique id";
}

void CudaBackend::Hear(NeighbourMessage message) {
  if (MemberCommunicator* communicator = Find(message.communicator, message.epoch)) {
    return communicator->Hear(std::move(message));
  }
  const auto known = ids_.find(message.communicator);
  if (known != ids_.end()) {
    const uint64_t epoch = known->second.epoch;
    if (epoch > message.epoch || (epoch == message.epoch && known->second.used)) return;
  }
  auto early = FindEarly(message.communicator, message.epoch);
  if (early == early_.end()) {
    if (early_.size() == kMaxEarlyCommunicators) early_.pop_front();
    early_.push_back({.communicator = message.communicator, .epoch = message.epoch});
    early = early_.end() - 1;
  }
  if (early->messages.size() < kMaxEarly) early->messages.push_back(std::move(message));
}

std::deque<CudaBackend::Early>::iterator CudaBackend::FindEarly(uint64_t communicator,
                                                                uint64_t epoch) {
  return std::find_if(early_.begin(), early_.end(), [&](const Early& early) {
    return early.communicator == communicator && early.epoch == epoch;
  });
}

std::unique_ptr<MemberLink> CudaBackend::MakeLink(const CommunicatorMember& in,
                                                  const std::string& no_nccl) {
  // It may be called when this is gone.
  const auto enter = [set_current = device_->driver().context_set_current,
                      context = device_->context()] {
    if (set_current(context) == kSuccess) return absl::OkStatus();
    return absl::InternalError("cuCtxSetCurrent failed on the thread that calls NCCL");
  };
  const CommunicatorOptions options = {.group_id = in.communicator,
                                       .epoch = in.epoch,
                                       .num_ranks = static_cast<int>(in.workers.size()),
                                       .rank = in.self,
                                       .enter_device = enter};
  if (!in.library.has_value()) {
    std::unique_ptr<NativeLink> by_nccl;
    if (no_nccl.empty()) by_nccl = std::make_unique<NativeLink>(nccl_->table, options);
    if (in.num_near() <= 1) return by_nccl;
    if (!in.all_near()) {
      return std::make_unique<MixedLink>(
          *device_, std::move(by_nccl),
          MixedLink::Options{.membership = in, .form_limit = options.form_limit}, for_neighbours_,
          notes_);
    }
    return std::make_unique<DirectLink>(
        *device_, std::move(by_nccl),
        DirectLink::Options{
            .membership = in, .form_limit = options.form_limit, .no_otherwise = no_nccl},
        for_neighbours_, notes_);
  }
  return std::make_unique<nccl_ep::EpLink>(
      *device_, *nccl_,
      nccl_ep::EpLinkOptions{
          .communicator = options, .group = *in.library, .program = program_, .limit = limit_ / 2});
}

// The first stream of no communicator; else that of one whose tenants are gone, once it is through.
absl::StatusOr<int> CudaBackend::FreeStream(absl::Time now) {
  std::set<int> taken;
  for (const auto& communicator : communicators_) taken.insert(communicator->stream());
  for (int i = 0; i < kMaxCommunicators; ++i) {
    if (!taken.contains(kNumMoveStreams + i)) return kNumMoveStreams + i;
  }
  for (auto it = communicators_.begin(); it != communicators_.end(); ++it) {
    if ((*it)->num_users > 0 || (*it)->has_moves()) continue;
    const int stream = (*it)->stream();
    (*it)->End(absl::AbortedError("the communicator had no tenants"), now);
    queue_.emplace_back((*it)->TakeMemory());
    communicators_.erase(it);
    return stream;
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("this worker serves ", kMaxCommunicators,
                   " groups over several GPUs, the most there may be; end one of them"));
}

absl::Status CudaBackend::Entered(uint64_t group_id, uint64_t epoch) const {
  const MemberCommunicator* communicator = Find(group_id, epoch);
  if (communicator == nullptr) return absl::AbortedError("the communicator has ended");
  return communicator->Entered();
}

RowLink CudaBackend::LinkOf(uint64_t group_id, uint64_t epoch) const {
  const MemberCommunicator* communicator = Find(group_id, epoch);
  return communicator == nullptr ? RowLink{} : communicator->row_link();
}

void CudaBackend::Leave(uint64_t group_id, uint64_t epoch, absl::Time) {
  MemberCommunicator* communicator = Find(group_id, epoch);
  if (communicator != nullptr && communicator->num_users > 0) --communicator->num_users;
}

void CudaBackend::WorkerLost(uint64_t worker, const std::string& who, absl::Time now) {
  for (const auto& communicator : communicators_) {
    const CommunicatorMember& in = communicator->membership();
    if (std::find(in.workers.begin(), in.workers.end(), worker) == in.workers.end()) continue;
    communicator->End(absl::UnavailableError(absl::StrCat(Name(in.communicator, in.epoch), ": ",
                                                          who, " is lost; the group forms again")),
                      now, /*worker_gone=*/true);
  }
}

void CudaBackend::StartWithPeers(MoveId id, CudaArenas& arenas, const MoveGroup& group,
                                 const MoveJob& job) {
  MemberCommunicator* communicator = Find(group.communicator, group.epoch);
  if (communicator == nullptr) {
    return moved_.push_back({id, absl::AbortedError("the group's communicator has ended")});
  }
  auto move = std::make_unique<MemberMove>();
  move->id = id;
  move->arenas = &arenas;
  move->group = group;
  move->job = job;
  communicator->Start(std::move(move));
}

void CudaBackend::Issue(const IssuePlace& place, absl::Time now) {
  for (const auto& communicator : communicators_) {
    if (communicator->Has(place.id)) return communicator->Issue(place, now);
  }
}

void CudaBackend::Cancel(MoveId id, absl::Time now) {
  for (const auto& communicator : communicators_) communicator->Cancel(id, now);
}

void CudaBackend::PollCommunicators(absl::Time now) {
  for (const auto& communicator : communicators_) {
    if (const absl::Status lost = communicator->Poll(now); !lost.ok()) Lose(lost);
  }
  for (auto it = communicators_.begin(); it != communicators_.end();) {
    if (!(*it)->ended() || (*it)->has_moves() || (*it)->num_users > 0) {
      ++it;
      continue;
    }
    queue_.emplace_back((*it)->TakeMemory());
    it = communicators_.erase(it);
  }
}

}  // namespace epd::cuda
