#include "daemon/backend/cuda/members/member_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/backend/sha256.h"

namespace epd::cuda {
namespace {

using State = MemberMove::State;

// Of moves that read their counts, and of moves in the stream.
constexpr size_t kNumReadingBlocks = 2;
constexpr size_t kNumBlocks = 4;
// Of a step's layers, forward and backward, of a few tenants.
constexpr size_t kMaxKnownPlans = 512;

// What all members must have alike, beside what their calls were compared for.
uint64_t DigestOf(const std::vector<int32_t>& counts) {
  if (counts.empty()) return 0;
  const absl::StatusOr<std::string> digest =
      Sha256({reinterpret_cast<const char*>(counts.data()), counts.size() * sizeof(int32_t)});
  uint64_t first = 0;
  if (digest.ok()) std::memcpy(&first, digest->data(), sizeof first);
  return first;
}

bool InStream(const MemberMove& move) {
  return move.state == State::kReading || move.state == State::kIssued ||
         move.state == State::kRunning;
}

}  // namespace

MemberCommunicator::MemberCommunicator(CudaDevice& device, std::unique_ptr<MemberLink> link,
                                       const Options& options, std::vector<MovedRows>& moved,
                                       std::vector<PreparedMove>& prepared)
    : device_(device),
      options_(options),
      moved_(moved),
      prepared_(prepared),
      link_(std::move(link)),
      known_(kMaxKnownPlans),
      reading_(device, kNumReadingBlocks, MoveMemory::Scratch::kOfEachBlock),
      memory_(device, kNumBlocks) {}

void MemberCommunicator::Begin(const std::optional<NcclUniqueId>& id, absl::Time) {
  id_ = id;
  begins_ = true;
}

absl::Status MemberCommunicator::Enter(absl::Time now) {
  const absl::Status reserved = memory_.Reserve(link_->room());
  if (absl::IsFailedPrecondition(reserved)) return absl::OkStatus();
  if (absl::IsInternal(reserved)) return reserved;
  if (!reserved.ok()) {
    End(reserved, now);
    return absl::OkStatus();
  }
  begins_ = false;
  link_->Begin(std::exchange(id_, std::nullopt), memory_.Places(0),
               device_.streams().at(options_.stream), now);
  return absl::OkStatus();
}

absl::Status MemberCommunicator::Entered() const {
  switch (link_->state()) {
    case CommState::kReady:
      return absl::OkStatus();
    case CommState::kNone:
    case CommState::kForming:
      return absl::UnavailableError("the communicator is being formed");
    default:
      break;
  }
  if (!end_.ok()) return end_;
  return link_->cause().ok() ? absl::AbortedError("the communicator has ended") : link_->cause();
}

void MemberCommunicator::End(const absl::Status& why, absl::Time now, bool worker_gone) {
  if (end_.ok()) end_ = why;
  begins_ = false;
  id_.reset();
  link_->End("a member", worker_gone, now);
  FinishAllOutsideOfTheStream(end_);
}

MemberMove* MemberCommunicator::Find(MoveId id) const {
  for (const auto& move : moves_) {
    if (move->id == id) return move.get();
  }
  return nullptr;
}

bool MemberCommunicator::Has(MoveId id) const { return Find(id) != nullptr; }

void MemberCommunicator::Start(std::unique_ptr<MemberMove> move) {
  if (!end_.ok()) return moved_.push_back({move->id, end_});
  absl::StatusOr<std::unique_ptr<MemberRows>> rows = link_->Rows(move->group, move->job);
  if (!rows.ok()) return moved_.push_back({move->id, rows.status()});
  move->rows = *std::move(rows);
  if (move->rows->read_room().host_bytes == 0) {
    move->state = State::kSized;
  } else if (const PlanSizes* sizes = known_.Find(PlanOf(*move));
             sizes != nullptr && move->rows->TakeKnown(*sizes)) {
    move->state = State::kSized;
  }
  moves_.push_back(std::move(move));
}

KnownPlan MemberCommunicator::PlanOf(const MemberMove& move) {
  return {.arenas = move.arenas,
          .group_id = move.group.group_id,
          .epoch = move.group.epoch,
          .plan_id = move.job.plan_id};
}

void MemberCommunicator::Finish(MemberMove& move, const absl::Status& status) {
  moved_.push_back({move.id, status});
  if (move.issued) link_->Completed();
  if (next_ == move.id) next_.reset();
  order_.Forget(move.id);
  std::erase_if(moves_, [&move](const auto& one) { return one.get() == &move; });
}

void MemberCommunicator::FinishAllOutsideOfTheStream(const absl::Status& why) {
  std::vector<MemberMove*> over;
  for (const auto& move : moves_) {
    if (move->verdict.ok()) move->verdict = why;
    if (!InStream(*move)) over.push_back(move.get());
  }
  for (MemberMove* move : over) Finish(*move, why);
}

void MemberCommunicator::Cancel(MoveId id, absl::Time) {
  MemberMove* move = Find(id);
  if (move == nullptr || move->has_place) return;
  if (move->verdict.ok()) {
    move->verdict = absl::AbortedError("the operation has failed elsewhere");
  }
  if (!InStream(*move)) Finish(*move, move->verdict);
}

std::vector<PeerMemory> MemberCommunicator::Forget(const CudaArenas* arenas) {
  std::erase_if(moves_, [arenas](const auto& move) { return move->arenas == arenas; });
  known_.ForgetArenas(arenas);
  return link_->Forget(arenas);
}

void MemberCommunicator::Issue(const IssuePlace& place, absl::Time now) {
  MemberMove* move = Find(place.id);
  // Its end is on its way: who aborts has no turns.
  if (move == nullptr || !end_.ok() || ended()) return;
  absl::Status problem = order_.Placed(place.id, place.place);
  if (problem.ok() && move->state != State::kPrepared) {
    problem = absl::InternalError(absl::StrCat("operation ", place.id, " has a turn too early"));
  }
  if (problem.ok() && place.recv_capacity.size() != move->job.parts.size()) {
    problem = absl::InternalError("a turn with the numbers of another group");
  }
  if (problem.ok()) {
    move->has_place = true;
    for (size_t rank = 0; rank < move->job.parts.size(); ++rank) {
      MovePart& part = move->job.parts[rank];
      if (!part.local) part.recv_capacity = place.recv_capacity[rank];
    }
    problem = move->rows->TakeNumbers(place.tokens_from);
  }
  // The others issue it, and nobody can go on without this member.
  if (!problem.ok()) return End(problem, now);
  move->rows->TakePlace(place.place);
  order_.Prepared(place.id);
}

// ---- step by step ----

absl::Status MemberCommunicator::Poll(absl::Time now) {
  if (begins_) return Enter(now);
  link_->Poll(now);
  was_ready_ = was_ready_ || link_->state() == CommState::kReady;
  CheckLate(now);
  if (absl::Status broken = link_->broken(); !broken.ok()) return broken;
  if (ended()) return Settle(now);
  // What is in the stream goes on while it ends.
  if (link_->state() != CommState::kReady && link_->state() != CommState::kAborting) {
    return absl::OkStatus();
  }
  std::vector<MoveId> ids;
  for (const auto& move : moves_) ids.push_back(move->id);
  for (const MoveId id : ids) {
    MemberMove* move = Find(id);
    if (move == nullptr) continue;
    if (move->state != State::kIssued && link_->state() != CommState::kReady) continue;
    if (absl::Status lost = Advance(*move, now); !lost.ok()) return lost;
  }
  return link_->state() == CommState::kReady ? IssueNext(now) : absl::OkStatus();
}

void MemberCommunicator::CheckLate(absl::Time now) {
  const bool late = std::any_of(moves_.begin(), moves_.end(),
                                [now](const auto& move) { return now >= move->deadline; });
  if (late && !ended()) link_->OperationLate(now);
}

// Aborted: what the stream has not got ends, what it has ends once it is through.
absl::Status MemberCommunicator::Settle(absl::Time now) {
  if (failed_at_ == absl::InfiniteFuture()) failed_at_ = now;
  for (const auto& move : moves_) {
    if (move->state != State::kIssued) continue;
    if (absl::Status lost = PutRest(*move, now); !lost.ok()) return lost;
  }
  if (end_.ok() && num_users == 0) end_ = Entered();
  if (!end_.ok()) {
    FinishAllOutsideOfTheStream(end_);
    return absl::OkStatus();
  }
  // Nobody says that a member is lost, and yet the group cannot go on in this epoch.
  if (was_ready_ && now >= failed_at_ + options_.limit) return link_->cause();
  return absl::OkStatus();
}

absl::Status MemberCommunicator::Advance(MemberMove& move, absl::Time now) {
  switch (move.state) {
    case State::kNew:
      return Read(move, now);
    case State::kSized:
      return Reserve(move);
    case State::kIssued:
      return link_->launching() ? absl::OkStatus() : PutRest(move, now);
    default:
      return absl::OkStatus();
  }
}

// In the stream of the arenas, so that it waits for no member.
absl::Status MemberCommunicator::Read(MemberMove& move, absl::Time now) {
  const absl::StatusOr<int> block = reading_.TakeBlock(move.rows->read_room());
  if (absl::IsFailedPrecondition(block.status())) return absl::OkStatus();
  if (absl::IsInternal(block.status())) return block.status();
  if (!block.ok()) {
    Finish(move, block.status());
    return absl::OkStatus();
  }
  MovePlaces places = reading_.Places(*block);
  places.arenas = move.arenas->arenas();
  const StreamSteps steps = move.rows->Read(places, device_.shape());
  const absl::Status started = device_.work().Start(
      move.id, move.arenas->stream(),
      [&](Stream stream) { return steps.Put(device_.driver(), device_.kernels(), stream); }, now);
  if (!started.ok()) {
    reading_.ReturnBlock(*block);
    return absl::IsResourceExhausted(started) ? absl::OkStatus() : started;
  }
  move.block = *block;
  move.state = State::kReading;
  return absl::OkStatus();
}

void MemberCommunicator::TakeCounts(MemberMove& move) {
  const absl::Status read = move.rows->TakeRead(reading_.Places(move.block).host);
  reading_.ReturnBlock(move.block);
  move.block = -1;
  if (!move.verdict.ok()) return Finish(move, move.verdict);
  if (!read.ok()) return Finish(move, read);
  known_.Keep(PlanOf(move), {move.rows->counts(), move.rows->tokens_to()});
  move.state = State::kSized;
}

absl::Status MemberCommunicator::Reserve(MemberMove& move) {
  absl::Status reserved = move.rows->Reach(*move.arenas);
  // NCCL may be about to use what lies there.
  if (reserved.ok() && !memory_.Holds(move.rows->room())) {
    if (NumInStream() > 0) return absl::OkStatus();
    reserved = memory_.Reserve(move.rows->room());
  }
  if (absl::IsFailedPrecondition(reserved)) return absl::OkStatus();
  if (absl::IsInternal(reserved)) return reserved;
  if (!reserved.ok()) {
    Finish(move, reserved);
    return absl::OkStatus();
  }
  move.state = State::kPrepared;
  prepared_.push_back({move.id, DigestOf(move.rows->counts()), move.rows->tokens_to()});
  return absl::OkStatus();
}

size_t MemberCommunicator::NumInStream() const {
  return static_cast<size_t>(std::count_if(moves_.begin(), moves_.end(), [](const auto& move) {
    return move->state == State::kIssued || move->state == State::kRunning;
  }));
}

absl::Status MemberCommunicator::IssueNext(absl::Time now) {
  while (!link_->launching()) {
    const bool launched = std::none_of(moves_.begin(), moves_.end(), [](const auto& move) {
      return move->state == State::kIssued;
    });
    if (!launched) return absl::OkStatus();
    if (!next_.has_value()) next_ = order_.Next();
    if (!next_.has_value()) return absl::OkStatus();
    MemberMove* move = Find(*next_);
    if (move == nullptr) {
      next_.reset();
      continue;
    }
    const absl::StatusOr<int> block = memory_.TakeBlock(move->rows->room());
    if (absl::IsFailedPrecondition(block.status())) return absl::OkStatus();
    if (!block.ok()) return block.status();
    if (!move->rows->HasRegions()) {
      memory_.ReturnBlock(*block);
      // It is the first in order: a member that says nothing holds back all that come after it.
      move->deadline = std::min(move->deadline, now + options_.limit);
      return absl::OkStatus();
    }
    move->block = *block;
    next_.reset();
    if (absl::Status lost = Issue(*move, now); !lost.ok()) return lost;
  }
  return absl::OkStatus();
}

absl::Status MemberCommunicator::Issue(MemberMove& move, absl::Time now) {
  MovePlaces places = memory_.Places(move.block);
  places.arenas = move.arenas->arenas();
  move.steps = move.rows->Steps(places, device_.shape());
  const Stream stream = device_.streams().at(options_.stream);
  const Result put = move.steps.before.Put(device_.driver(), device_.kernels(), stream);
  if (put != kSuccess) {
    return absl::InternalError(Describe(device_.driver(), "putting work into a stream", put));
  }
  move.state = State::kIssued;
  move.deadline = now + options_.limit;
  const absl::Status issued = link_->Issue(move.steps, stream, now);
  move.issued = issued.ok();
  return link_->launching() || ended() ? absl::OkStatus() : PutRest(move, now);
}

// What comes behind NCCL's part, and an event behind all of it. Aborted, there is only the event.
absl::Status MemberCommunicator::PutRest(MemberMove& move, absl::Time now) {
  const bool whole = move.issued && !ended();
  const absl::Status started = device_.work().Start(
      move.id, options_.stream,
      [&](Stream stream) {
        return whole ? move.steps.after.Put(device_.driver(), device_.kernels(), stream) : kSuccess;
      },
      now, options_.limit);
  if (absl::IsResourceExhausted(started)) return absl::OkStatus();
  if (!started.ok()) return started;
  if (!whole && move.verdict.ok()) move.verdict = Entered();
  move.state = State::kRunning;
  return absl::OkStatus();
}

bool MemberCommunicator::Complete(WorkId id) {
  MemberMove* move = Find(id);
  if (move == nullptr) return false;
  if (move->state == State::kReading) {
    TakeCounts(*move);
    return true;
  }
  const uint8_t* host = memory_.Places(move->block).host;
  absl::Status status = !move->verdict.ok() ? move->verdict : move->rows->Outcome(host);
  // A plan that says otherwise now is read again by whoever comes with it next.
  if (!status.ok()) known_.Forget(PlanOf(*move));
  // Nobody knows how far NCCL was.
  if (status.ok() && link_->state() != CommState::kReady) status = Entered();
  if (status.ok() && move->job.kind == shm::Kind::kPrepare) {
    move->arenas->KeepCounts(move->job, host, move->group.spec.num_experts);
  }
  memory_.ReturnBlock(move->block);
  Finish(*move, status);
  return true;
}

bool MemberCommunicator::busy() const {
  if (begins_ || link_->busy() || !moves_.empty()) return true;
  return ended() && end_.ok() && num_users > 0 && was_ready_;
}

MoveMemory::Left MemberCommunicator::TakeMemory() {
  MoveMemory::Left left = memory_.TakeAway();
  MoveMemory::Left more = reading_.TakeAway();
  left.memory.insert(left.memory.end(), more.memory.begin(), more.memory.end());
  left.pages.insert(left.pages.end(), more.pages.begin(), more.pages.end());
  left.peers = link_->TakeMapped();
  return left;
}

}  // namespace epd::cuda
