#include "tests/unit/daemon/worker/world/streams.h"

#include <utility>

namespace epd::world {
namespace {

using Code = absl::StatusCode;

constexpr uint32_t kAborted = static_cast<uint32_t>(Code::kAborted);
constexpr uint64_t kCapacity = 64;  // Slots of a call.

}  // namespace

Streams::Streams(World& world, const StreamOptions& options)
    : w_(world), options_(options), streams_(options.worker_of.size()) {
  w_.on_answer = [this](Worker& worker, const AnswerSubmission& e) { Answered(worker, e); };
  w_.on_moved = [this](Worker& worker, const Move& move) {
    for (uint32_t r = 0; r < num_ranks(); ++r) {
      if (options_.worker_of[r] == worker.index) streams_[r].out = move.operation;
    }
  };
  Group group;
  group.spec = MakeSpec(num_ranks());
  group.spec.executor = options.executor;
  group.spec.drop_on_overflow = options.drops;
  if (options.on_device) group.spec.backend = "cuda";
  group.worker_of = options.worker_of;
  group.streams = true;
  for (uint32_t r = 0; r < num_ranks(); ++r) group.members.push_back(SessionId(r + 1));
  group_ = &w_.AddGroup(std::move(group));
  w_.Form(*group_);
  for (uint32_t r = 0; r < num_ranks(); ++r) {
    streams_[r].sites.resize(options.num_sites);
    WriteRequests(r);
  }
}

// Routes differ at every call: what a rank needs is known to nobody before.
bool Streams::Overflows(uint32_t r) const {
  return (streams_[r].cycle * 7 + r * 3 + options_.seed) % options_.overflows_every == 0;
}

// An earlier prepare has failed, and left zeros.
bool Streams::HasPlan(uint32_t r) const {
  return (streams_[r].cycle * 5 + r * 2 + options_.seed) % options_.lacks_plan_every != 0;
}

void Streams::WriteRequests(uint32_t rank) {
  for (uint32_t site = 0; site < options_.num_sites; ++site) {
    for (uint32_t step = 0; step < 3; ++step) {
      shm::SlotRequest& request = streams_[rank].sites[site][step].request;
      const shm::SlotRequest before =
          std::exchange(request, MakeDispatch({.group = group_->id,
                                               .epoch = Epoch(group_->epoch),
                                               .formation = epd::Formation(group_->formation),
                                               .rank = rank}));
      SetStreamStep(request, site, kStreamSteps[step]);
      request.stage_bytes = 1000;
      request.out_bytes = 100;
      if (options_.on_device) request.plan_bytes = 512;
      if (step == 0)
        SetDemand(request, before.plan_id, before.announce.demand);  // The stream's to write.
      if (step == 1 && rank_moves()) SetGoodReport(request);
    }
  }
}

void Streams::Tell(uint32_t r) {
  const uint64_t demand = Overflows(r) ? kCapacity + 1 : kCapacity;
  SetDemand(streams_[r].sites[streams_[r].site][0].request, HasPlan(r) ? 1 : 0,
            HasPlan(r) ? demand : 0);
}

// ---- streams ----

void Streams::Arm(uint32_t r, uint32_t step) {
  Stream& stream = streams_[r];
  Slot& slot = stream.sites[stream.site][step];
  w_.Happens(nullptr, StreamArms{shm::Ready(slot.word) != 0});
  slot.word = shm::kArmed;
  if (options_.scans) return;
  Claim(r, stream.site * 3 + step);
  w_.Perform(WorkerOfRank(r));
}

// The stream reads or writes its stream region on behalf of an operation, from here to its next step.
void Streams::Touch(uint32_t r, OperationId operation) {
  const Stream& stream = streams_[r];
  if (stream.mapped != group_->formation && stream.answered_in == group_->formation)
    w_.Happens(nullptr, StreamIsStale());
  const Touches touch{.worker = options_.worker_of[r],
                      .run = stream.mapped,
                      .area = {.set = {}, .offset = 0, .bytes = 1},
                      .operation = operation,
                      .session = group_->members[r]};
  w_.Happens(nullptr, touch);
  w_.touching[r] = touch;
}

// Before publish: stages the rows in the own region.
void Streams::Copy(uint32_t r, OperationId operation) {
  Touch(r, operation);
  w_.staged[{group_->id, r}] = operation;
  streams_[r].stages[streams_[r].mapped] = operation;
}

// Behind publish: what the worker has put into the own region, or what all ranks have staged in theirs.
void Streams::Read(uint32_t r, OperationId operation) {
  Touch(r, operation);
  std::vector<OperationId> found;
  for (const Stream& peer : streams_) {
    const auto stage = peer.stages.find(streams_[r].mapped);
    found.push_back(stage == peer.stages.end() ? OperationId() : stage->second);
  }
  if (!rank_moves()) found = {streams_[r].out};
  w_.Happens(nullptr, StreamReads{operation, std::move(found)});
}

void Streams::Go(uint32_t r) {
  Stream& stream = streams_[r];
  std::array<Slot, 3>& site = stream.sites[stream.site];
  w_.touching.erase(r);
  const OperationId mine = site[0].answered_as;
  switch (stream.pc) {
    case Pc::kTell:
      if (!w_.Is(Sabotage::kTellLate)) Tell(r);
      stream.pc = Pc::kArmAnnounce;
      return;
    case Pc::kArmAnnounce:
      stream.pc = w_.Is(Sabotage::kTellLate) ? Pc::kTellLate : Pc::kWaitAnnounce;
      stream.named = {};
      return Arm(r, 0);
    case Pc::kTellLate:
      Tell(r);
      stream.pc = Pc::kWaitAnnounce;
      return;
    case Pc::kWaitAnnounce:
      if (shm::Done(site[0].word) >= 1) stream.pc = Pc::kCopy;
      return;
    case Pc::kCopy:
      stream.pc = Pc::kArmPublish;
      if (w_.Is(Sabotage::kStageLate)) return;
      if (shm::Done(site[0].word) == 1 || w_.Is(Sabotage::kStageUngated)) Copy(r, mine);
      return;
    case Pc::kArmPublish:
      stream.pc = w_.Is(Sabotage::kStageLate) ? Pc::kCopyLate : Pc::kWaitPublish;
      if (stream.named.number != 0) w_.published[stream.named].insert(Rank(r));
      return Arm(r, 1);
    case Pc::kCopyLate:
      if (shm::Done(site[0].word) == 1) Copy(r, mine);
      stream.pc = Pc::kWaitPublish;
      return;
    case Pc::kWaitPublish:
      if (shm::Done(site[1].word) >= 1) stream.pc = Pc::kRead;
      return;
    case Pc::kRead: {
      stream.pc = Pc::kArmPulled;
      const auto code = static_cast<Code>(shm::AnswerCode(site[1].word));
      w_.ends[stream.spoke_for][r].push_back(
          {stream.cycle, code, HasPlan(r) && Overflows(r), !HasPlan(r)});
      if (code != Code::kOk) {
        ++num_bad_;
        num_refused_ += code == Code::kInvalidArgument || code == Code::kResourceExhausted ||
                        code == Code::kDataLoss;
        num_overflows_ += r == 0 && code == Code::kResourceExhausted;
        num_skipped_ += code == Code::kAborted && !group_->ended;
        return;
      }
      ++num_good_;
      return Read(r, mine);
    }
    case Pc::kArmPulled:
      stream.pc = Pc::kTell;
      Arm(r, 2);
      stream.site = (stream.site + 1) % options_.num_sites;
      ++stream.cycle;
      return;
  }
}

// The client's CPU.
void Streams::Remap(uint32_t r) {
  if (!MayRemap(r)) return;
  Stream& stream = streams_[r];
  stream.mapped = group_->formation;
  WriteRequests(r);
}

// ---- workers ----

bool Streams::IsArmed(uint32_t slot) const {
  const uint32_t of_rank = slot % slots_of_rank();
  return streams_[slot / slots_of_rank()].sites[of_rank / 3][of_rank % 3].word == shm::kArmed;
}

void Streams::Claim(uint32_t r, uint32_t index) {
  Stream& stream = streams_[r];
  std::array<Slot, 3>& site = stream.sites[index / 3];
  Slot& slot = site[index % 3];
  if (slot.word != shm::kArmed || w_.Is(Sabotage::kForgetStream)) return;
  slot.word = shm::Claimed(++slot.last_claim);
  stream.taken += static_cast<char>('0' + index % 3);
  stream.taken += index % 3 == 0 && slot.request.announce.demand > kCapacity ? '!' : '.';
  stream.taken += slot.request.formation == group_->formation ? '=' : '<';
  if (index % 3 == 0) stream.spoke_for = slot.request.formation;
  const bool pulled_open = num_replaced_ == 0 && shm::Ready(site[2].word) != 0;
  if (w_.Is(Sabotage::kAnswerAtOnce) && index % 3 == 0 && pulled_open) {
    slot.word = shm::Answered(0);
    return w_.Happens(
        nullptr,
        StreamTold{
            .submission = {}, .operation = {}, .code = Code::kOk, .pulled_open = pulled_open});
  }
  w_.TakeOnly(WorkerOfRank(r),
              {.session = group_->members[r], .slot = index, .claim = slot.last_claim},
              slot.request);
}

void Streams::Answered(Worker& worker, const AnswerSubmission& e) {
  const auto r = static_cast<uint32_t>(e.submission.session.value - 1);
  Stream& stream = streams_[r];
  std::array<Slot, 3>& site = stream.sites[e.submission.slot / 3];
  const uint32_t step = e.submission.slot % 3;
  Slot& slot = site[step];
  if (slot.word != shm::Claimed(e.submission.claim)) return;
  const auto code = static_cast<uint32_t>(e.status.code());
  slot.word = shm::Answered(code);
  if (step == 1 && e.operation) w_.told[{worker.index, e.operation}] = e.status.code();
  if (step != 0 || !e.operation) return;
  // What an earlier worker left is claimed and answered in the pass of the announce, in any order.
  w_.Happens(&worker,
             StreamTold{.submission = e.submission,
                        .operation = e.operation,
                        .code = e.status.code(),
                        .drops = options_.drops,
                        .over = HasPlan(r) && Overflows(r),
                        .planless = !HasPlan(r),
                        .pulled_open = num_replaced_ == 0 && shm::Ready(site[2].word) != 0});
  if (e.status.code() == Code::kResourceExhausted && w_.num_workers() == 1)
    w_.overflows[e.operation] |= HasPlan(r) && Overflows(r);
  if (code != 0) return;
  slot.answered_as = e.operation;
  stream.answered_in = group_->formation;
  stream.named = {group_->id, epd::Formation(stream.spoke_for),
                  e.plan_id != 0 ? e.plan_id : e.operation.value};
  w_.names[{worker.index, e.operation}] = stream.named;
  w_.met[stream.named][r] = stream.cycle;
}

// A worker goes through all slots in their order, and answers at the end.
void Streams::ScanNext() {
  Claim(scan_ / slots_of_rank(), scan_ % slots_of_rank());
  if (++scan_ < num_slots()) return;
  scan_ = 0;
  w_.Perform(w_.worker(0));
}

void Streams::FinishMove(bool good) {
  Worker& worker = w_.worker(0);
  if (worker.moves.empty()) return;
  const Move move = worker.moves.front();
  worker.moves.clear();
  for (Stream& stream : streams_) stream.out = move.operation;
  worker.exchange.RowsMoved(move.operation,
                            good ? absl::OkStatus() : absl::DataLossError("damaged"), w_.now);
  w_.Perform(worker);
}

// epd answers from the records what the dead worker left open.
void Streams::Replace() {
  ++num_replaced_;
  scan_ = 0;
  Worker& worker = w_.worker(0);
  for (uint32_t r = 0; r < num_ranks(); ++r) {
    streams_[r].taken.clear();
    for (uint32_t index = 0; index < slots_of_rank(); ++index) {
      Slot& slot = streams_[r].sites[index / 3][index % 3];
      if (shm::Ready(slot.word) == 0 || w_.Is(Sabotage::kLeaveOpen)) continue;
      const auto link = worker.links.find(
          {.session = group_->members[r], .slot = index, .claim = slot.last_claim});
      const auto decided =
          worker.decided.find(link == worker.links.end() ? OperationId() : link->second);
      uint32_t code = kAborted;
      if (slot.word != shm::kArmed && decided != worker.decided.end()) {
        if (!decided->second.ok()) code = static_cast<uint32_t>(decided->second.code());
        if (decided->second.ok() && index % 3 == 1) code = 0;
      }
      slot.word = shm::Answered(code);
    }
  }
  ExchangeOptions next = w_.options().engine;
  next.first_operation_id = 1 + (num_replaced_ << 20);
  w_.Replace(worker, next);
  w_.Form(*group_);
  for (uint32_t r = 0; r < num_ranks() && w_.Is(Sabotage::kSpeakUnmapped); ++r) WriteRequests(r);
}

// ---- runs ----

// epd, and the clients that map the staging of the next formation.
void Streams::Settle() {
  if (group_->ended && w_.OneIn(20)) {
    for (int at = 0; at < w_.num_workers(); ++at)
      w_.End(*group_, at, absl::AbortedError("formed anew"));
    w_.Form(*group_);
  }
  for (uint32_t r = 0; r < num_ranks(); ++r) {
    if (w_.OneIn(5)) Remap(r);
  }
}

void Streams::RandomEvent() {
  const auto rank = static_cast<uint32_t>(w_.Roll(num_ranks()));
  const uint64_t what = w_.Roll(1000);
  if (!options_.scans) {
    if (what < 500) Go(rank);
    if (what >= 500 && what < 960) w_.DeliverMessage();
    if (what >= 960) w_.AdvanceMove();
    Settle();
    if (options_.cut_every > 0 && w_.OneIn(options_.cut_every)) w_.LosePeerStream();
    return;
  }
  if (what < 450) return Go(rank);
  if (what < 940) return ScanNext();
  if (what < 980) return scan_ == 0 ? FinishMove(!w_.OneIn(20)) : ScanNext();
  if (what < 997) return Remap(rank);
  Replace();
}

void Streams::FairRound() {
  for (uint32_t r = 0; r < num_ranks(); ++r) {
    Go(r);
    if (!options_.scans) continue;
    for (uint32_t i = 0; i < slots_of_rank(); ++i) Claim(r, i);
    w_.Perform(w_.worker(0));
    FinishMove(true);
    Remap(r);
  }
  if (options_.scans) return;
  w_.DeliverEverything();
  Settle();
  w_.now += absl::Milliseconds(20);
  w_.Tick();
}

void Streams::Run(int num_events) {
  constexpr int kFairRounds = 1500;
  for (int i = 0; i < num_events && !w_.broken(); ++i) {
    RandomEvent();
    w_.StepEnds();
  }
  w_.quiet = true;
  const uint64_t good = num_good_;
  for (int i = 0; i < (options_.scans ? 400 : kFairRounds) && !w_.broken(); ++i) FairRound();
  const bool stuck = num_good_ < good + (options_.scans ? 4 : 20) * num_ranks();
  w_.Happens(nullptr, Rests{stuck ? "the streams are stuck" : ""});
}

}  // namespace epd::world
