#include "daemon/backend/cuda/span_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/backend/sha256.h"

namespace epd::cuda {
namespace {

using State = SpanMove::State;

// Of moves that read their counts, and of moves in the stream.
constexpr size_t kNumReadingBlocks = 2;
constexpr size_t kNumBlocks = 4;

CommunicatorOptions CommOptions(const SpanCommunicator::Options& options) {
  const Membership& in = options.membership;
  return {.group_id = in.communicator,
          .epoch = in.epoch,
          .num_ranks = static_cast<int>(in.workers.size()),
          .rank = in.self,
          .form_limit = options.form_limit};
}

// What all members must have alike, beside what their calls were compared for.
uint64_t DigestOf(const std::vector<int32_t>& counts) {
  if (counts.empty()) return 0;
  const absl::StatusOr<std::string> digest =
      Sha256({reinterpret_cast<const char*>(counts.data()), counts.size() * sizeof(int32_t)});
  uint64_t first = 0;
  if (digest.ok()) std::memcpy(&first, digest->data(), sizeof first);
  return first;
}

bool InStream(const SpanMove& move) {
  return move.state == State::kReading || move.state == State::kIssued ||
         move.state == State::kRunning;
}

}  // namespace

SpanCommunicator::SpanCommunicator(CudaDevice& device, const NcclTable& nccl,
                                   const Options& options, std::vector<MovedRows>& moved,
                                   std::vector<PreparedMove>& prepared)
    : device_(device),
      options_(options),
      moved_(moved),
      prepared_(prepared),
      comm_(nccl, CommOptions(options)),
      reading_(device, kNumReadingBlocks),
      memory_(device, kNumBlocks) {}

void SpanCommunicator::Begin(const NcclUniqueId& id, absl::Time now) { comm_.Begin(id, now); }

absl::Status SpanCommunicator::Entered() const {
  switch (comm_.state()) {
    case CommState::kReady:
      return absl::OkStatus();
    case CommState::kNone:
    case CommState::kForming:
      return absl::UnavailableError("the communicator is being formed");
    default:
      break;
  }
  if (!end_.ok()) return end_;
  return comm_.cause().ok() ? absl::AbortedError("the communicator has ended") : comm_.cause();
}

void SpanCommunicator::End(const absl::Status& why, absl::Time now) {
  if (end_.ok()) end_ = why;
  comm_.PeerLost("a member", now);
  FinishAllOutsideOfTheStream(end_);
}

SpanMove* SpanCommunicator::Find(MoveId id) const {
  for (const auto& move : moves_) {
    if (move->id == id) return move.get();
  }
  return nullptr;
}

bool SpanCommunicator::Has(MoveId id) const { return Find(id) != nullptr; }

void SpanCommunicator::Start(std::unique_ptr<SpanMove> move) {
  if (!end_.ok()) return moved_.push_back({move->id, end_});
  absl::StatusOr<RowMoves> rows = RowMoves::Create(move->group, move->job, &move->traffic);
  if (rows.ok() && move->job.kind == shm::Kind::kPrepare) {
    // Its sizes are known without a plan.
    move->traffic = PlanSpanTraffic(rows->Shape(), nullptr, options_.membership.self);
    move->state = State::kSized;
  }
  if (!rows.ok()) return moved_.push_back({move->id, rows.status()});
  move->rows.emplace(*std::move(rows));
  moves_.push_back(std::move(move));
}

void SpanCommunicator::Finish(SpanMove& move, const absl::Status& status) {
  moved_.push_back({move.id, status});
  if (move.issued) comm_.Completed();
  if (next_ == move.id) next_.reset();
  order_.Forget(move.id);
  std::erase_if(moves_, [&move](const auto& one) { return one.get() == &move; });
}

void SpanCommunicator::FinishAllOutsideOfTheStream(const absl::Status& why) {
  std::vector<SpanMove*> over;
  for (const auto& move : moves_) {
    if (move->verdict.ok()) move->verdict = why;
    if (!InStream(*move)) over.push_back(move.get());
  }
  for (SpanMove* move : over) Finish(*move, why);
}

void SpanCommunicator::Cancel(MoveId id, absl::Time) {
  SpanMove* move = Find(id);
  if (move == nullptr || move->has_turn) return;
  if (move->verdict.ok()) {
    move->verdict = absl::AbortedError("the operation has failed elsewhere");
  }
  if (!InStream(*move)) Finish(*move, move->verdict);
}

void SpanCommunicator::Forget(const CudaArenas* arenas) {
  std::erase_if(moves_, [arenas](const auto& move) { return move->arenas == arenas; });
}

void SpanCommunicator::Turn(const MoveTurn& turn, absl::Time now) {
  SpanMove* move = Find(turn.id);
  // Its end is on its way: who aborts has no turns.
  if (move == nullptr || !end_.ok() || ended()) return;
  absl::Status problem = order_.Placed(turn.id, turn.place);
  if (problem.ok() && move->state != State::kPrepared) {
    problem = absl::InternalError(absl::StrCat("operation ", turn.id, " has a turn too early"));
  }
  if (problem.ok() && turn.recv_capacity.size() != move->job.parts.size()) {
    problem = absl::InternalError("a turn with the numbers of another group");
  }
  if (problem.ok()) {
    move->has_turn = true;
    for (size_t rank = 0; rank < move->job.parts.size(); ++rank) {
      MovePart& part = move->job.parts[rank];
      if (!part.local) part.recv_capacity = turn.recv_capacity[rank];
    }
    problem = move->rows->CheckImages();
  }
  // The others issue it, and nobody can go on without this member.
  if (!problem.ok()) return End(problem, now);
  if (move->job.kind != shm::Kind::kPrepare) {
    move->traffic =
        PlanSpanTraffic(move->rows->Shape(), move->counts.data(), options_.membership.self);
  }
  order_.Prepared(turn.id);
}

// ---- step by step ----

absl::Status SpanCommunicator::Poll(absl::Time now) {
  comm_.Poll(now);
  was_ready_ = was_ready_ || comm_.state() == CommState::kReady;
  CheckLate(now);
  if (ended()) return Settle(now);
  if (comm_.state() != CommState::kReady) return absl::OkStatus();
  std::vector<MoveId> ids;
  for (const auto& move : moves_) ids.push_back(move->id);
  for (const MoveId id : ids) {
    SpanMove* move = Find(id);
    if (move == nullptr) continue;
    if (absl::Status lost = Advance(*move, now); !lost.ok()) return lost;
  }
  return IssueNext(now);
}

void SpanCommunicator::CheckLate(absl::Time now) {
  const bool late = std::any_of(moves_.begin(), moves_.end(),
                                [now](const auto& move) { return now >= move->deadline; });
  if (late && !ended()) comm_.OperationLate(now);
}

// Aborted: what the stream has not got ends, what it has ends once it is through.
absl::Status SpanCommunicator::Settle(absl::Time now) {
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
  if (was_ready_ && now >= failed_at_ + options_.limit) return comm_.cause();
  return absl::OkStatus();
}

absl::Status SpanCommunicator::Advance(SpanMove& move, absl::Time now) {
  switch (move.state) {
    case State::kNew:
      return Read(move, now);
    case State::kSized:
      return Reserve(move);
    case State::kIssued:
      return comm_.launching() ? absl::OkStatus() : PutRest(move, now);
    default:
      return absl::OkStatus();
  }
}

// In the stream of the arenas, so that it waits for no member.
absl::Status SpanCommunicator::Read(SpanMove& move, absl::Time now) {
  const absl::StatusOr<int> block =
      reading_.TakeBlock({.device_bytes = 0, .host_bytes = move.rows->read_bytes()});
  if (absl::IsFailedPrecondition(block.status())) return absl::OkStatus();
  if (absl::IsInternal(block.status())) return block.status();
  if (!block.ok()) {
    Finish(move, block.status());
    return absl::OkStatus();
  }
  MovePlaces places = reading_.Places(*block);
  places.arenas = move.arenas->arenas();
  const StreamSteps steps = move.rows->ReadCounts(places);
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

void SpanCommunicator::TakeCounts(SpanMove& move) {
  absl::StatusOr<std::vector<int32_t>> counts =
      move.rows->CountsIn(reading_.Places(move.block).host);
  reading_.ReturnBlock(move.block);
  move.block = -1;
  if (!move.verdict.ok()) return Finish(move, move.verdict);
  if (!counts.ok()) return Finish(move, counts.status());
  move.counts = *std::move(counts);
  move.traffic = PlanSpanTraffic(move.rows->Shape(), move.counts.data(), options_.membership.self);
  // Of the landings it had no room.
  absl::StatusOr<RowMoves> rows = RowMoves::Create(move.group, move.job, &move.traffic);
  if (!rows.ok()) return Finish(move, rows.status());
  move.rows.emplace(*std::move(rows));
  move.state = State::kSized;
}

absl::Status SpanCommunicator::Reserve(SpanMove& move) {
  // NCCL may be about to use what lies there.
  absl::Status reserved = absl::OkStatus();
  if (!memory_.Holds(move.rows->room())) {
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
  prepared_.push_back({move.id, DigestOf(move.counts)});
  return absl::OkStatus();
}

size_t SpanCommunicator::NumInStream() const {
  return static_cast<size_t>(std::count_if(moves_.begin(), moves_.end(), [](const auto& move) {
    return move->state == State::kIssued || move->state == State::kRunning;
  }));
}

absl::Status SpanCommunicator::IssueNext(absl::Time now) {
  while (!comm_.launching()) {
    const bool launched = std::none_of(moves_.begin(), moves_.end(), [](const auto& move) {
      return move->state == State::kIssued;
    });
    if (!launched) return absl::OkStatus();
    if (!next_.has_value()) next_ = order_.Next();
    if (!next_.has_value()) return absl::OkStatus();
    SpanMove* move = Find(*next_);
    if (move == nullptr) {
      next_.reset();
      continue;
    }
    const absl::StatusOr<int> block = memory_.TakeBlock(move->rows->room());
    if (absl::IsFailedPrecondition(block.status())) return absl::OkStatus();
    if (!block.ok()) return block.status();
    move->block = *block;
    next_.reset();
    if (absl::Status lost = Issue(*move, now); !lost.ok()) return lost;
  }
  return absl::OkStatus();
}

absl::Status SpanCommunicator::Issue(SpanMove& move, absl::Time now) {
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
  const absl::Status issued = comm_.Issue(move.steps.exchange, stream, now);
  move.issued = issued.ok();
  return comm_.launching() || ended() ? absl::OkStatus() : PutRest(move, now);
}

// What comes behind NCCL's part, and an event behind all of it. Aborted, there is only the event.
absl::Status SpanCommunicator::PutRest(SpanMove& move, absl::Time now) {
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

bool SpanCommunicator::Complete(WorkId id) {
  SpanMove* move = Find(id);
  if (move == nullptr) return false;
  if (move->state == State::kReading) {
    TakeCounts(*move);
    return true;
  }
  const uint8_t* host = memory_.Places(move->block).host;
  absl::Status status = !move->verdict.ok() ? move->verdict : Outcome(*move, host);
  // Nobody knows how far NCCL was.
  if (status.ok() && ended()) status = Entered();
  if (status.ok() && move->job.kind == shm::Kind::kPrepare) {
    const size_t row = move->group.num_experts * sizeof(int32_t);
    const auto* counts = reinterpret_cast<const char*>(move->rows->Counts(host));
    for (const MovePart& part : move->job.parts) {
      move->arenas->KeepCounts(part.arena, part.stage_offset, {counts, row});
      counts += row;
    }
  }
  memory_.ReturnBlock(move->block);
  Finish(*move, status);
  return true;
}

absl::Status SpanCommunicator::Outcome(const SpanMove& move, const uint8_t* host) const {
  if (move.job.kind == shm::Kind::kPrepare) return absl::OkStatus();
  if (absl::Status found = move.rows->Outcome(host); !found.ok()) return found;
  const absl::StatusOr<std::vector<int32_t>> seen =
      move.rows->CountsIn(host + move.rows->counts_seen_at());
  if (seen.ok() && *seen == move.counts) return absl::OkStatus();
  return absl::DataLossError(
      "a rank's plan has changed while its rows were on their way; prepare again");
}

bool SpanCommunicator::busy() const {
  if (comm_.state() == CommState::kForming || !moves_.empty()) return true;
  return ended() && end_.ok() && num_users > 0 && was_ready_;
}

MoveMemory::Left SpanCommunicator::TakeMemory() {
  MoveMemory::Left left = memory_.TakeAway();
  MoveMemory::Left more = reading_.TakeAway();
  left.memory.insert(left.memory.end(), more.memory.begin(), more.memory.end());
  left.pages.insert(left.pages.end(), more.pages.begin(), more.pages.end());
  return left;
}

}  // namespace epd::cuda
