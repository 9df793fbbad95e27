// Long because the steps of one call, with and without the worker, share its state.
#include "client/c/operation.h"

#include <algorithm>
#include <optional>
#include <string>

#include "client/c/direct_call.h"
#include "client/c/held_slot.h"
#include "proto/epd/v1/operation_kind.h"
#include "proto/epd/v1/region_layout.h"
#include "proto/epd/v1/text.h"
#include "proto/failpoint/failpoint.h"

namespace epd::client {
namespace {

// Beyond the worker's own deadlines: a last resort against a worker that hangs and that epd has not
// noticed.
constexpr std::chrono::seconds kAnswerGrace{10};

std::chrono::nanoseconds Positive(int64_t ns, std::chrono::seconds fallback) {
  return ns > 0 ? std::chrono::nanoseconds(std::min<int64_t>(ns, INT64_MAX / 8)) : fallback;
}

// What people read of the key: its name, or where the call stands.
const std::string& TextOf(const CallKey& key) { return key.name.empty() ? key.scope : key.name; }

// One call between BeginCall and EndCall.
class Call {
 public:
  Call(Session& session, Group& group, const std::shared_ptr<const Formation>& formation,
       Operation& operation)
      : session_(session),
        group_(group),
        shared_formation_(formation),
        formation_(*formation),
        operation_(operation) {}

  Status Run(uint32_t rank, const CallKey& key);
  // Of a formation that has ended with `cause`: what the worker knows of this execution, which may
  // have failed with another cause before; `cause` if it knows nothing.
  Status AskWhyEnded(uint32_t rank, const CallKey& key, const Status& cause);
  const char* phase() const { return phase_; }

 private:
  Status Announce(HeldSlot& slot, const CallKey& key);
  // Asks the worker. `limit`: its own deadlines.
  Status Ask(HeldSlot& slot, shm::Step step, std::chrono::nanoseconds limit);
  // Without the worker. True: the operation is good, and every rank's rows stand in their eager buffers.
  bool TryDirect(HeldSlot& slot, const CallKey& key);
  void TakeDirect(const HeldSlot& slot);
  Status ReadDirect(HeldSlot& slot);
  DirectPrograms::Call ProgramCall() const;
  void SetKey(const CallKey& key);
  // Stages into the slot's eager buffer if there is one and the rows are small. False: they are not staged.
  bool TryStage(const HeldSlot& slot, Status* status);
  Status Publish(HeldSlot& slot);
  Status Read();
  // Into the caller's buffers.
  Status TakeRows();
  // Arms the slot with the request and waits. An answer with a code becomes its status.
  Status Submission(HeldSlot& slot, shm::Step step, std::chrono::nanoseconds limit);
  void TakeAdmission(const shm::SlotReply& reply);
  void TakeEagerBuffers(HeldSlot& slot);
  void TakeNames(const shm::SlotReply& reply) {
    admitted_.op_id = reply.op_id;
    admitted_.plan_id = reply.plan_id != 0 ? reply.plan_id : reply.op_id;
  }
  void AddStage(uint32_t rank, std::optional<uint64_t> offset, uint64_t bytes);
  void SetError(const Status& error);

  Session& session_;
  Group& group_;
  const std::shared_ptr<const Formation>& shared_formation_;
  const Formation& formation_;
  Operation& operation_;
  shm::SlotRequest request_ = {};
  Admitted admitted_;
  Status admission_;  // Whether the worker's region can be used.
  bool published_ = false;
  std::optional<DirectCall> direct_;  // It was published.
  bool met_ = false;                  // By all ranks.
  std::vector<StageRef> stages_;
  uint64_t out_offset_ = 0;
  const char* phase_ = "announce";
};

Status Call::Run(uint32_t rank, const CallKey& key) {
  HeldSlot slot(*formation_.slots[rank]);
  if (!slot.valid()) {
    return MakeStatus(
        Code::kResourceExhausted,
        "all %u op slots of this session are taken, which limits its outstanding operations "
        "(slots_per_session); let some end first, or have the setting raised, to at most %u",
        formation_.slots[rank]->view().num_slots(), limits::kMaxOpSlots);
  }
  request_.rank = rank;
  EPD_FAILPOINT("client.announce.begin");
  if (Status s = Announce(slot, key); !s.ok()) return s;
  EPD_FAILPOINT("client.announce.answered");
  phase_ = "publish";
  if (!published_) {
    if (Status s = Publish(slot); !s.ok()) return s;
  }
  phase_ = "pull";
  EPD_FAILPOINT("client.pull.begin");
  if (met_) return ReadDirect(slot);
  const Status read = Read();
  EPD_FAILPOINT("client.pull.done");
  // Also after an error: it is this rank's alone now, and the others' regions must not wait for it.
  request_.step = shm::Step::kPulled;
  (*slot).request = request_;
  slot.ArmAndLeave();
  EPD_FAILPOINT("client.pulled.said");
  return read;
}

void Call::SetError(const Status& error) {
  request_.error_code = static_cast<uint32_t>(error.code);
  text::Write(error.message, request_.error);
}

bool Call::TryStage(const HeldSlot& slot, Status* status) {
  const shm::Area& area = slot.eager_buffers();
  const std::optional<uint64_t> eager_buffer =
      formation_.eager_buffers->OffsetOf(slot.index(), area);
  const Formation::Arena& own = formation_.arenas[request_.rank];
  if (!eager_buffer || !slot.OwnsEagerBuffer() || request_.stage_bytes > area.stride) return false;
  if (formation_.spec.executor == Executor::kWorker || own.mapping == nullptr || !own.own ||
      own.bytes() < area.stride || *eager_buffer > own.bytes() - area.stride) {
    return false;
  }
  Admitted in_eager_buffer;
  in_eager_buffer.region = {own.data() + *eager_buffer, area.stride};
  *status = operation_.Stage(in_eager_buffer);
  EPD_FAILPOINT("client.stage.eager");
  return status->ok();
}

Status Call::Announce(HeldSlot& slot, const CallKey& key) {
  Status own = operation_.Plan(formation_, &request_);
  const Formation::Arena& arena = formation_.arenas[request_.rank];
  if (own.ok() && arena.device != nullptr && arena.mapping == nullptr) {
    own = MakeStatus(Code::kFailedPrecondition,
                     "the group's staging is on a device (backend=cuda), where a CPU's call cannot "
                     "put its rows; call from the CUDA platform, or form the group with "
                     "backend=cpu");
  }
  if (own.ok() && IsOnDevice(formation_.spec) && formation_.spec.executor == Executor::kClient) {
    own = MakeStatus(Code::kFailedPrecondition,
                     "with executor client the rows of a group on a device are moved by kernels in "
                     "the stream of the call, which a CPU's call has none of; call from the CUDA "
                     "platform, or form the group with executor worker");
  }
  const bool staged = own.ok() && TryStage(slot, &own);
  if (staged) request_.announce.eager_buffer = static_cast<uint32_t>(slot.index());
  SetKey(key);
  if (own.ok()) {
    text::Write(TextOf(key), request_.announce.name);
  } else {
    SetError(own);
  }
  const Deadlines& deadlines = formation_.spec.deadlines;
  const auto limit = Positive(deadlines.absent, std::chrono::minutes(10)) +
                     Positive(deadlines.undecided, std::chrono::seconds(30));
  if (staged && TryDirect(slot, key)) return {};
  const shm::Step step = staged ? shm::Step::kAnnounceStaged : shm::Step::kAnnounce;
  if (Status s = Ask(slot, step, limit); !s.ok() || met_) return s;
  if (!own.ok()) return own;  // The worker took an error for good: it is not.
  request_.operation.op_id = (*slot).reply.op_id;
  published_ = staged && (*slot).eager.good != 0;
  if (published_) {
    TakeEagerBuffers(slot);
  } else {
    formation_.eager_buffers->Learn((*slot).eager, slot.eager_buffers());
    TakeAdmission((*slot).reply);
  }
  return {};
}

// What ranks have published for themselves stays good whatever the worker says, or epd in its place: both see to it that
// nobody can publish any more before they say so.
Status Call::Ask(HeldSlot& slot, shm::Step step, std::chrono::nanoseconds limit) {
  (*slot).eager.good = 0;
  (*slot).direct = {};
  const Status said = Submission(slot, step, limit);
  const shm::SlotDirect told = (*slot).direct;
  if (direct_ && (!said.ok() || told.met != 0)) met_ = direct_->AllHavePublished();
  if (direct_) formation_.direct->Note(ProgramCall(), met_);
  if (met_) {
    TakeDirect(slot);
    return {};
  }
  if (direct_) direct_->Withdraw();
  if (!said.ok()) return said;
  if (told.met != 0) {
    return MakeStatus(Code::kDataLoss, "a peer took back what it had published; join again");
  }
  if (told.generation != 0) {
    formation_.direct->Learn(ProgramCall(),
                             {.execution = told.execution, .generation = told.generation});
  }
  return {};
}

DirectPrograms::Call Call::ProgramCall() const {
  DirectPrograms::Call call;
  call.rank = request_.rank;
  std::copy(std::begin(request_.program), std::end(request_.program), call.program.begin());
  call.raw_execution = request_.execution;
  call.ordinal = request_.ordinal;
  call.occurrence = request_.occurrence;
  call.prepares = request_.kind == shm::Kind::kPrepare;
  return call;
}

bool Call::TryDirect(HeldSlot& slot, const CallKey& key) {
  if (!formation_.goes_direct) return false;
  // An overflow is the worker's to say: it knows every rank's.
  if (shm::Scatters(request_.kind) && !formation_.spec.drop_on_overflow &&
      request_.announce.demand > request_.recv_capacity) {
    return false;
  }
  const std::optional<DirectPrograms::Turn> turn = formation_.direct->Begin(ProgramCall());
  if (!turn) return false;
  direct_.emplace(formation_, request_.rank, slot.pool());
  const DirectCall::Said said = {.eager_buffer = static_cast<uint32_t>(slot.index()),
                                 .name = TextOf(key),
                                 .routes = operation_.routes()};
  if (!direct_->Publish(request_, *turn, said)) {
    direct_.reset();
    return false;
  }
  EPD_FAILPOINT("client.direct.published");
  met_ = direct_->Await(formation_.direct_wait);
  if (!met_) {
    request_.announce.published = direct_->HandOver();
    EPD_FAILPOINT("client.direct.handed_over");
    return false;
  }
  formation_.direct->Note(ProgramCall(), true);
  TakeDirect(slot);
  return true;
}

void Call::TakeDirect(const HeldSlot& slot) {
  EPD_FAILPOINT("client.direct.met");
  published_ = true;
  const shm::Area& area = slot.eager_buffers();
  for (uint32_t rank = 0; rank < formation_.arenas.size(); ++rank) {
    const uint32_t eager_buffer = direct_->EagerBufferOf(rank);
    AddStage(rank,
             formation_.eager_buffers->OffsetOf(
                 eager_buffer < shm::kMaxEagerBuffers ? static_cast<int>(eager_buffer) : -1, area),
             area.stride);
  }
  admitted_.stages = stages_;
  if (request_.kind == shm::Kind::kPrepare) admitted_.plan_id = direct_->plan_id();
}

Status Call::ReadDirect(HeldSlot& slot) {
  const Status read = Read();
  direct_->Finish(Clock::now(), read.ok() ? operation_.padded_rows() : 0);
  slot.LeaveUntil(DirectCall::MakeIsFree(shared_formation_, *direct_));
  return read;
}

void Call::SetKey(const CallKey& key) {
  request_.group_id = formation_.group_id;
  request_.epoch = formation_.epoch;
  request_.formation = formation_.formation;
  std::copy(key.program.begin(), key.program.end(), request_.program);
  request_.execution = *key.execution;
  request_.ordinal = key.ordinal;
  request_.occurrence = key.occurrence;
  request_.has_name = key.name.empty() ? 0 : 1;
  request_.spec_hash = formation_.spec_hash;
}

// An announce with an error is never admitted: it fails with what the worker knows, or, where it has
// not heard of the formation's end yet, ends the execution with `cause` for everybody.
Status Call::AskWhyEnded(uint32_t rank, const CallKey& key, const Status& cause) {
  HeldSlot slot(*formation_.slots[rank]);
  if (!slot.valid()) return cause;
  request_.rank = rank;
  SetKey(key);
  SetError(cause);
  request_.step = shm::Step::kAnnounce;
  (*slot).request = request_;
  (*slot).reply.message[0] = '\0';
  const uint32_t answer = slot.ArmAndWait(Clock::now() + kAnswerGrace, formation_.spin);
  const std::string text(text::Read((*slot).reply.message));
  const Code code = CodeFromNumber(answer);
  // ABORTED: that worker knows of no such formation any more.
  return code == Code::kOk || code == Code::kAborted || text.empty() ? cause : Status{code, text};
}

void Call::TakeAdmission(const shm::SlotReply& reply) {
  const uint64_t offset = reply.region_offset;
  const uint64_t bytes = reply.region_bytes;
  TakeNames(reply);
  admitted_.worker_executor = formation_.spec.executor == Executor::kWorker;
  const Formation::Arena& own = formation_.arenas[request_.rank];
  const uint64_t arena_bytes = own.mapping == nullptr ? 0 : own.bytes();
  if (!own.own || offset > arena_bytes || bytes > arena_bytes - offset ||
      request_.stage_bytes > bytes || offset % shm::kRegionAlignment != 0) {
    admission_ =
        MakeStatus(Code::kInternal,
                   "the worker gave a region [%llu, +%llu) that does not hold %llu bytes of "
                   "an arena of %llu",
                   static_cast<unsigned long long>(offset), static_cast<unsigned long long>(bytes),
                   static_cast<unsigned long long>(request_.stage_bytes),
                   static_cast<unsigned long long>(arena_bytes));
    return;
  }
  admitted_.region = {own.data() + offset, bytes};
  for (uint32_t rank = 0; rank < formation_.arenas.size(); ++rank) AddStage(rank, offset, bytes);
  admitted_.stages = stages_;
}

void Call::TakeEagerBuffers(HeldSlot& slot) {
  TakeNames((*slot).reply);
  const shm::Area& area = slot.eager_buffers();
  for (uint32_t rank = 0; rank < formation_.arenas.size(); ++rank) {
    const int eager_buffer =
        rank < limits::kEagerRanks ? (*slot).eager.eager_buffer_of_rank[rank] : -1;
    AddStage(rank, formation_.eager_buffers->OffsetOf(eager_buffer, area), area.stride);
  }
  admitted_.stages = stages_;
}

// The next rank's stage; nothing for the own one, and where it does not lie in the rank's arena.
void Call::AddStage(uint32_t rank, std::optional<uint64_t> offset, uint64_t bytes) {
  const Formation::Arena& arena = formation_.arenas[rank];
  const bool inside = rank != request_.rank && arena.mapping != nullptr && offset &&
                      *offset <= arena.bytes() && bytes <= arena.bytes() - *offset;
  stages_.push_back(inside ? StageRef{arena.data() + *offset, bytes} : StageRef{});
}

Status Call::Publish(HeldSlot& slot) {
  EPD_FAILPOINT("client.stage.begin");
  const Status own = admission_.ok() ? operation_.Stage(admitted_) : admission_;
  EPD_FAILPOINT("client.stage.done");
  if (!own.ok()) SetError(own);
  const auto limit = Positive(formation_.spec.deadlines.undecided, std::chrono::seconds(30));
  if (Status s = Submission(slot, shm::Step::kPublish, limit); !s.ok()) return s;
  EPD_FAILPOINT("client.publish.answered");
  out_offset_ = (*slot).reply.out_offset;
  return own;
}

Status Call::TakeRows() {
  if (!admitted_.worker_executor) return operation_.Pull(admitted_);
  const Formation::Arena& own = formation_.arenas[request_.rank];
  const bool inside = out_offset_ <= own.bytes() && request_.out_bytes <= own.bytes() - out_offset_;
  return inside ? operation_.TakeOutput(admitted_, own.data() + out_offset_)
                : MakeStatus(Code::kInternal, "the worker put the output outside of the arena");
}

// What frees rows under a reader is the cause, not the damage that the reader then finds in them.
Status Call::Read() {
  const Status read = TakeRows();
  if (met_) {
    EPD_FAILPOINT("client.direct.read");
  }
  // Peers' regions are freed only after `ended` was set, so unset it proves that what was read was
  // meant for us.
  const bool ended = formation_.slots[request_.rank]->ended();
  if (ended || !read.ok()) {
    session_.Settle();
    if (const Status lost = session_.lost(); !lost.ok()) return lost;
  }
  if (ended) {
    return MakeStatus(Code::kUnavailable, "the daemon ended this session while the rows were read");
  }
  if (!group_.IsCurrent(formation_)) {
    return MakeStatus(Code::kAborted,
                      "the group was formed anew while the rows were read; call again");
  }
  if (met_ && !direct_->RowsStand()) {
    return MakeStatus(Code::kAborted, "a peer's rows went away while they were read; call again");
  }
  return read;
}

Status Call::Submission(HeldSlot& slot, shm::Step step, std::chrono::nanoseconds limit) {
  request_.step = step;
  (*slot).request = request_;
  (*slot).reply.message[0] = '\0';
  const uint32_t answer = slot.ArmAndWait(Clock::now() + limit + kAnswerGrace, formation_.spin);
  if (answer == 0) return {};
  Status status{CodeFromNumber(answer), std::string(text::Read((*slot).reply.message))};
  if (!status.message.empty()) return status;
  const Status lost = session_.lost();
  if (!lost.ok()) return lost;
  switch (status.code) {
    case Code::kCancelled:
      return session_.EndInterrupted();
    case Code::kDeadlineExceeded:
      status.message = "the worker did not answer";
      break;
    case Code::kDataLoss:
      status.message = "the op slot was written over; connect and join again";
      break;
    default:
      status.message = "the worker gave no reason";
  }
  return status;
}

}  // namespace

Status FromKernel(const KernelError& error) {
  if (error.ok()) return {};
  return {error.code, ToString(error)};
}

Status RunOperation(Session& session, Group& group, uint32_t rank, CallKey key,
                    Operation& operation) {
  ErrorPlace place{.group = group.name(), .rank = rank, .phase = "begin"};
  Status status = session.BeforeCallOf(group);
  std::shared_ptr<const Formation> formation;
  if (status.ok()) status = group.BeginCall(rank, &key, &formation);
  if (status.ok()) {
    place.epoch = formation->epoch;
    Call call(session, group, formation, operation);
    status = call.Run(rank, key);
    place.phase = call.phase();
    formation.reset();
    group.EndCall(rank, !status.ok());
    if (!status.ok()) session.Settle();
  } else if (formation != nullptr) {
    place.epoch = formation->epoch;
    status = Call(session, group, formation, operation).AskWhyEnded(rank, key, status);
  } else if (const auto last = group.current()) {
    place.epoch = last->epoch;
  }
  if (status.ok()) return status;
  operation.ZeroOutputs();
  return AtPlace(std::move(status), place);
}

}  // namespace epd::client
