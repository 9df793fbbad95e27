#include "tests/unit/daemon/worker/stream_world.h"

#include <utility>
#include <variant>

#include "tests/unit/daemon/worker/exchange_harness.h"

namespace epd::streams {
namespace {

constexpr uint32_t kAborted = static_cast<uint32_t>(absl::StatusCode::kAborted);
constexpr shm::Step kSteps[] = {shm::Step::kStreamAnnounce, shm::Step::kStreamPublish,
                                shm::Step::kStreamPulled};

}  // namespace

StreamWorld::StreamWorld(uint64_t seed, Executor executor, Sabotage sabotage)
    : random_(seed),
      executor_(executor),
      sabotage_(sabotage),
      seed_(seed),
      num_sites_(1 + static_cast<uint32_t>(seed % kMaxSites)),
      drops_(seed % 5 == 0) {
  for (Rank& rank : ranks_) rank.sites.resize(num_sites_);
  Form();
  for (uint32_t r = 0; r < kNumRanks; ++r) WriteRequests(r);
}

void StreamWorld::Violate(const std::string& what) {
  if (violation_.empty()) violation_ = what;
}

void StreamWorld::Form() {
  exchange_ = std::make_unique<Exchange>(ExchangeOptions{
      .staging_bytes = kPool, .first_operation_id = next_operation_, .stream_region_bytes = 4096});
  next_operation_ += 1 << 20;
  TenantStart start{.group = kGroup,
                    .epoch = Epoch(1),
                    .formation = Formation(++formation_),
                    .spec = ExchangeHarness::Spec(kNumRanks),
                    .members = {},
                    .bases = {},
                    .base_cause = absl::AbortedError("re-formed")};
  start.spec.executor = executor_;
  start.spec.drop_on_overflow = drops_;
  for (uint32_t r = 0; r < kNumRanks; ++r) {
    exchange_->AddSession(SessionId(r + 1));
    start.members.push_back(RankHolder{.rank = epd::Rank(r),
                                       .node = {},
                                       .session = SessionId(r + 1),
                                       .arena_index = 0,
                                       .host = "h",
                                       .pid = 1,
                                       .client_name = {}});
  }
  if (!exchange_->StartTenant(std::move(start), now_).ok()) Violate("a sound tenant was refused");
  Perform();
}

void StreamWorld::WriteRequests(uint32_t rank) {
  for (uint32_t s = 0; s < num_sites_; ++s) {
    for (uint32_t step = 0; step < 3; ++step) {
      shm::SlotRequest& request = ranks_[rank].sites[s].slots[step].request;
      const shm::SlotRequest before = request;
      request = {};
      request.plan_id = before.plan_id;  // The stream's to write, as the demand.
      request.step = kSteps[step];
      request.kind = shm::Kind::kDispatch;
      if (step == 0) {
        request.announce.demand = before.announce.demand;
      } else {  // What the kernels of this rank report: nothing wrong.
        request.stream = {.announce_slot = SlotIndex(s, 0),
                          .reserved = 0,
                          .move_report = UINT64_MAX,
                          .plan_header = {}};
      }
      request.group_id = kGroup.value;
      request.epoch = 1;
      request.formation = formation_;
      request.rank = rank;
      request.program[0] = 1;
      request.ordinal = s;
      request.dtype = 1;
      request.top_k = 2;
      request.row_bytes = 32;
      if (step != 0) request.plan_id = 1;
      request.num_tokens = 4;
      request.recv_capacity = kCapacity;
      request.stage_bytes = 1000;
      request.out_bytes = 100;
    }
  }
}

StreamWorld::Slot& StreamWorld::SlotOf(const Submission& submission) {
  return ranks_[submission.session.value - 1].sites[submission.slot / 3].slots[submission.slot % 3];
}

void StreamWorld::Arm(Slot& slot) {
  if (shm::Ready(slot.word) != 0) Violate("a stream armed a use that is open: two became one");
  slot.word = shm::kArmed;
}

// The stream reads or writes its eager buffer on behalf of an operation, from here to its next step.
void StreamWorld::Touch(Rank& rank, OperationId operation) {
  rank.touching = true;
  rank.touched = operation;
  if (rank.mapped != formation_ && operation.value >= next_operation_ - (1 << 20)) {
    Violate("a stream touched staging of an earlier worker for an operation of this one");
  }
  for (const Rank& other : ranks_) {
    const bool same_worker = other.mapped == rank.mapped;
    if (other.touching && same_worker && other.touched != operation) {
      Violate("two operations were in one stream region");
    }
  }
}

// Before publish: stages the rows in the own eager buffer, or puts them into the eager buffers of all ranks.
void StreamWorld::Copy(uint32_t r, OperationId operation) {
  Rank& rank = ranks_[r];
  Touch(rank, operation);
  rank.in_region = operation;
  for (Rank& other : ranks_) {
    if (rank_moves() && other.mapped == rank.mapped) other.pushed[r] = operation;
  }
}

// Behind publish: what the worker, or all ranks, have put into the own eager buffer.
void StreamWorld::Read(Rank& rank, OperationId operation) {
  Touch(rank, operation);
  if (!rank_moves() && rank.out != operation) {
    Violate("a stream read the output of another operation");
  }
  for (const OperationId& from : rank.pushed) {
    if (rank_moves() && from != operation) Violate("a stream read rows of another operation");
  }
}

// Routes differ at every use: what a rank needs is known to nobody before.
bool StreamWorld::Overflows(uint32_t r) const {
  return (ranks_[r].num_cycles * 7 + r * 3 + seed_) % 11 == 0;
}

// An earlier prepare has failed, and left zeros.
bool StreamWorld::HasPlan(uint32_t r) const {
  return (ranks_[r].num_cycles * 5 + r * 2 + seed_) % 17 != 0;
}

void StreamWorld::Tell(uint32_t r) {
  shm::SlotRequest& request = ranks_[r].sites[ranks_[r].site].slots[0].request;
  request.plan_id = HasPlan(r) ? 1 : 0;
  request.announce.demand = HasPlan(r) ? (Overflows(r) ? kCapacity + 1 : kCapacity) : 0;
}

// What a rank's announce was answered with, against what is true of this use of its.
void StreamWorld::CheckTold(uint32_t r, OperationId operation, absl::StatusCode code) {
  const bool over = HasPlan(r) && Overflows(r);
  if (code == absl::StatusCode::kOk && !HasPlan(r)) Violate("a use went on without a plan");
  if (code == absl::StatusCode::kOk && over && !drops_) Violate("rows were dropped in silence");
  if (code == absl::StatusCode::kResourceExhausted) over_[operation] |= over;
}

void StreamWorld::CheckOverflows() {
  num_overflows_ = over_.size();
  for (const auto& [unused, over] : over_) {
    if (drops_ || !over) Violate("a use failed for rows that no rank had too many of");
  }
}

void StreamWorld::StreamStep(uint32_t r) {
  Rank& rank = ranks_[r];
  Site& site = rank.sites[rank.site];
  rank.touching = false;
  const OperationId mine = site.slots[0].answered_as;
  switch (rank.pc) {
    case Pc::kTell:
      if (!Is(Sabotage::kTellLate)) Tell(r);
      rank.pc = Pc::kArmAnnounce;
      return;
    case Pc::kArmAnnounce:
      Arm(site.slots[0]);
      rank.pc = Is(Sabotage::kTellLate) ? Pc::kTellLate : Pc::kWaitAnnounce;
      return;
    case Pc::kTellLate:
      Tell(r);
      rank.pc = Pc::kWaitAnnounce;
      return;
    case Pc::kWaitAnnounce:
      if (shm::Done(site.slots[0].word) >= 1) rank.pc = Pc::kCopy;
      return;
    case Pc::kCopy:
      rank.pc = Pc::kArmPublish;
      if (Is(Sabotage::kPushLate)) return;
      if (shm::Done(site.slots[0].word) == 1 || Is(Sabotage::kPushUngated)) Copy(r, mine);
      return;
    case Pc::kArmPublish:
      Arm(site.slots[1]);
      rank.pc = Is(Sabotage::kPushLate) ? Pc::kCopyLate : Pc::kWaitPublish;
      return;
    case Pc::kCopyLate:
      if (shm::Done(site.slots[0].word) == 1) Copy(r, mine);
      rank.pc = Pc::kWaitPublish;
      return;
    case Pc::kWaitPublish:
      if (shm::Done(site.slots[1].word) >= 1) rank.pc = Pc::kRead;
      return;
    case Pc::kRead:
      rank.pc = Pc::kArmPulled;
      if (shm::Done(site.slots[1].word) != 1) {
        ++num_bad_;
        return;
      }
      Read(rank, mine);
      ++num_good_;
      return;
    case Pc::kArmPulled:
      Arm(site.slots[2]);
      rank.pc = Pc::kTell;
      rank.site = (rank.site + 1) % num_sites_;
      ++rank.num_cycles;
      return;
  }
}

// When an announce is answered well. What an earlier worker left is claimed and answered in the pass of
// the announce, in any order.
void StreamWorld::CheckPulled(const Site& site) {
  if (num_replaced_ > 0 || shm::Ready(site.slots[2].word) < shm::kFirstClaimId) return;
  Violate("an announce was answered before its site's last pulled");
}

void StreamWorld::Claim(uint32_t r, uint32_t index) {
  Slot& slot = ranks_[r].sites[index / 3].slots[index % 3];
  if (slot.word != shm::kArmed || Is(Sabotage::kForgetStream)) return;
  slot.word = shm::Claimed(++slot.last_claim);
  taken_[r] += static_cast<char>('0' + index % 3);
  taken_[r] += index % 3 == 0 && slot.request.announce.demand > kCapacity ? '!' : '.';
  taken_[r] += slot.request.formation == formation_ ? '=' : '<';
  slot.linked = OperationId();
  const Submission submission{.session = SessionId(r + 1), .slot = index, .claim = slot.last_claim};
  const bool pulled_open = shm::Ready(ranks_[r].sites[index / 3].slots[2].word) != 0;
  if (Is(Sabotage::kAnswerAtOnce) && index % 3 == 0 && pulled_open) {
    slot.word = shm::Answered(0);
    CheckPulled(ranks_[r].sites[index / 3]);
    return;
  }
  exchange_->Take(submission, slot.request, now_);
}

void StreamWorld::Do(const AnswerSubmission& e) {
  Slot& slot = SlotOf(e.submission);
  if (slot.word != shm::Claimed(e.submission.claim)) return;
  const auto code = static_cast<uint32_t>(e.status.code());
  slot.word = shm::Answered(code);
  Rank& rank = ranks_[e.submission.session.value - 1];
  const uint32_t site = e.submission.slot / 3;
  if (e.submission.slot % 3 == 0 && e.operation) {
    CheckTold(static_cast<uint32_t>(e.submission.session.value - 1), e.operation, e.status.code());
  }
  if (e.submission.slot % 3 == 0 && code == 0) {
    CheckPulled(rank.sites[site]);
    slot.answered_as = e.operation;
    if (site_of_.emplace(e.operation, site).first->second != site) {
      Violate("two sites were one operation");
    }
    const uint64_t cycle = rank.num_cycles;
    if (num_replaced_ == 0 && cycle_of_.emplace(e.operation, cycle).first->second != cycle) {
      Violate("two uses of a site were one operation");
    }
  }
  if (e.submission.slot % 3 == 1 && e.operation) {
    if (told_.emplace(e.operation, code).first->second != code) {
      Violate("the ranks of an operation were told different things");
    }
  }
}

void StreamWorld::Do(const MoveRows& e) {
  for (const Rank& rank : ranks_) {
    if (rank.in_region != e.operation) Violate("rows were moved that are not staged");
  }
  moving_ = e.operation;
}

void StreamWorld::FinishMove(bool good) {
  if (!moving_.has_value()) return;
  const OperationId operation = *std::exchange(moving_, std::nullopt);
  for (Rank& rank : ranks_) rank.out = operation;
  exchange_->RowsMoved(operation, good ? absl::OkStatus() : absl::DataLossError("damaged"), now_);
  Perform();
}

void StreamWorld::Perform() {
  for (Effects effects = exchange_->TakeEffects(); !effects.empty();
       effects = exchange_->TakeEffects()) {
    for (const Effect& effect : effects) {
      std::visit([this](const auto& one) { Do(one); }, effect);
    }
  }
}

// epd answers from the records what the dead worker left open.
void StreamWorld::Replace() {
  ++num_replaced_;
  for (std::string& taken : taken_) taken.clear();
  moving_.reset();
  scan_ = 0;
  for (Rank& rank : ranks_) {
    for (Site& site : rank.sites) {
      for (uint32_t step = 0; step < 3 && !Is(Sabotage::kLeaveOpen); ++step) {
        Slot& slot = site.slots[step];
        if (shm::Ready(slot.word) == 0) continue;
        uint32_t code = kAborted;
        const auto decided = decided_.find(slot.linked);
        if (slot.word != shm::kArmed && decided != decided_.end()) {
          if (!decided->second.ok()) code = static_cast<uint32_t>(decided->second.code());
          if (decided->second.ok() && step == 1) code = 0;
        }
        slot.word = shm::Answered(code);
      }
    }
  }
  Form();
  for (uint32_t r = 0; r < kNumRanks && Is(Sabotage::kSpeakUnmapped); ++r) WriteRequests(r);
}

// The client's CPU, once nothing of its streams touches the eager buffer.
void StreamWorld::Remap(uint32_t r) {
  Rank& rank = ranks_[r];
  if (rank.mapped == formation_ || rank.touching) return;
  const bool copies = rank.pc == Pc::kCopy || rank.pc == Pc::kCopyLate;
  const bool reads = rank.pc == Pc::kRead;
  if (copies || reads) return;
  rank.mapped = formation_;
  WriteRequests(r);
}

// A worker goes through all slots in their order, and answers at the end.
void StreamWorld::ScanNext() {
  const uint32_t slots_of_rank = num_sites_ * 3;
  Claim(scan_ / slots_of_rank, scan_ % slots_of_rank);
  if (++scan_ < kNumRanks * slots_of_rank) return;
  scan_ = 0;
  Perform();
}

void StreamWorld::RandomEvent() {
  const auto rank = static_cast<uint32_t>(Roll(kNumRanks));
  const uint64_t what = Roll(1000);
  if (what < 450) return StreamStep(rank);
  if (what < 940) return ScanNext();
  if (what < 980) return scan_ == 0 ? FinishMove(Roll(20) != 0) : ScanNext();
  if (what < 997) return Remap(rank);
  Replace();
}

void StreamWorld::FairRound() {
  for (uint32_t r = 0; r < kNumRanks; ++r) {
    StreamStep(r);
    for (uint32_t i = 0; i < num_sites_ * 3; ++i) Claim(r, i);
    Perform();
    FinishMove(true);
    Remap(r);
  }
}

std::string StreamWorld::Run(int num_events) {
  for (int i = 0; i < num_events && violation_.empty(); ++i) RandomEvent();
  const uint64_t good = num_good_;
  for (int i = 0; i < 400 && violation_.empty(); ++i) FairRound();
  if (violation_.empty() && num_good_ < good + 4 * kNumRanks) Violate("the streams are stuck");
  if (violation_.empty()) CheckOverflows();
  return violation_;
}

}  // namespace epd::streams
