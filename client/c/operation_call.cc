// Long because the steps of one call, with and without the worker, share its state.
#include "client/c/operation_call.h"

#include <algorithm>
#include <functional>
#include <new>
#include <optional>
#include <string>
#include <utility>

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

// What runs out of memory on the way is an error of this rank's, which needs none and is said like others: what says nothing
// more would have all ranks wait.
template <typename Step>
Status InMemory(const Step& step) {
  try {
    return step();
  } catch (const std::bad_alloc&) {
    return {Code::kResourceExhausted, "out of memory"};
  }
}

// What people read of the key: its name, or where the call stands.
const std::string& TextOf(const CallKey& key) { return key.name.empty() ? key.scope : key.name; }

}  // namespace

Call::~Call() {
  if (state_ == State::kBegin || state_ == State::kEnded) return;
  if (direct_) direct_->Withdraw();
  slot_.Abandon();
}

bool Call::GoOn(Clock::time_point until) {
  for (;;) {
    switch (state_) {
      case State::kBegin:
        Go(Begin());
        break;
      case State::kMeet:
        if (!Meet(until)) return false;
        break;
      case State::kAnnounced:
        if (!AwaitAnswer(until)) return false;
        Go(TakeAnswer());
        break;
      case State::kPublished:
        if (!AwaitAnswer(until)) return false;
        Go(TakePublished());
        break;
      case State::kRead:
        phase_ = "pull";
        EPD_FAILPOINT("client.pull.begin");
        status_ = met_ ? ReadDirect() : ReadAndFree();
        state_ = State::kEnded;
        break;
      case State::kEnded:
        return true;
    }
  }
}

// An error ends the call; else the step has said where it goes on.
void Call::Go(Status status) {
  if (status.ok()) return;
  status_ = std::move(status);
  state_ = State::kEnded;
}

Status Call::Begin() {
  if (!slot_.valid()) {
    return MakeStatus(
        Code::kResourceExhausted,
        "all %u op slots of this session are taken, which limits its outstanding operations "
        "(slots_per_session); let some end first, or have the setting raised, to at most %u",
        formation_.slots[request_.rank]->view().num_slots(), limits::kMaxOpSlots);
  }
  EPD_FAILPOINT("client.announce.begin");
  own_ = InMemory([&] {
    stages_.reserve(formation_.arenas.size());
    return operation_.Plan(formation_, &request_);
  });
  if (own_.ok()) own_ = refused_;
  if (own_.ok()) own_ = CheckDevice();
  staged_ = own_.ok() && TryStage(&own_);
  request_.announce.client = shm::kReadsManyEagerBuffers;
  SetKey();
  if (own_.ok()) {
    text::Write(TextOf(key_), request_.announce.name);
  } else {
    SetError(own_);
  }
  if (staged_ && TryDirect()) {
    state_ = State::kMeet;
  } else {
    Announce();
  }
  return {};
}

Status Call::CheckDevice() const {
  const Formation::Arena& arena = formation_.arenas[request_.rank];
  if (arena.device != nullptr && arena.mapping == nullptr) {
    return MakeStatus(
        Code::kFailedPrecondition,
        "the group's staging is on a device (backend=cuda), where a CPU's call cannot "
        "put its rows; call in a stream of the GPU that the rank is on (from JAX: run the program "
        "there), or form the group with backend=cpu (from JAX: on CPU devices)");
  }
  if (IsOnDevice(formation_.spec) && formation_.spec.executor == Executor::kClient) {
    return MakeStatus(
        Code::kFailedPrecondition,
        "with executor client the rows of a group on a device are moved by kernels in "
        "the stream of the call, which a CPU's call has none of; call from the CUDA "
        "platform, or form the group with executor worker");
  }
  return {};
}

// Asks the worker, which has deadlines of its own.
void Call::Announce() {
  const Deadlines& deadlines = formation_.spec.deadlines;
  (*slot_).eager.good = 0;
  (*slot_).direct = {};
  Submit(staged_ ? shm::Step::kAnnounceStaged : shm::Step::kAnnounce,
         Positive(deadlines.absent, std::chrono::minutes(10)) +
             Positive(deadlines.undecided, std::chrono::seconds(30)));
  state_ = State::kAnnounced;
}

Status Call::TakeAnswer() {
  if (Status s = Answered(); !s.ok()) return s;
  if (!met_) {
    if (!own_.ok()) return own_;  // The worker took an error for good: it is not.
    request_.operation.op_id = (*slot_).reply.op_id;
    published_ = staged_ && (*slot_).eager.good != 0;
    if (published_) {
      TakeEagerBuffers();
    } else {
      if (staged_) NoteStaged(false);
      formation_.eager_buffers->Learn((*slot_).eager, slot_.eager_buffers());
      TakeAdmission((*slot_).reply);
    }
  }
  GoOnAdmitted();
  return {};
}

void Call::GoOnAdmitted() {
  EPD_FAILPOINT("client.announce.answered");
  if (published_) {
    state_ = State::kRead;
  } else {
    Publish();
  }
}

void Call::SetError(const Status& error) {
  request_.error_code = static_cast<uint32_t>(error.code);
  text::Write(error.message, request_.error);
}

bool Call::TryStage(Status* status) {
  const Formation::Arena& own = formation_.arenas[request_.rank];
  if (formation_.spec.executor == Executor::kWorker || own.mapping == nullptr || !own.own)
    return false;
  const shm::Area& area = slot_.eager_buffers();
  EagerBuffers& eager = *formation_.eager_buffers;
  num_staged_ = eager.NumFor(request_.stage_bytes, area);
  if (num_staged_ == 0) return false;
  const std::optional<uint32_t> first = slot_.TakeEagerBuffers(num_staged_, eager.count());
  const std::optional<uint64_t> offset =
      first ? eager.OffsetOf(*first, area) : std::optional<uint64_t>();
  const uint64_t bytes = uint64_t{num_staged_} * area.stride;
  if (!offset || own.bytes() < bytes || *offset > own.bytes() - bytes) return false;
  request_.announce.eager_buffer = *first;
  Admitted in_eager_buffers;
  in_eager_buffers.region = {own.data() + *offset, bytes};
  *status = InMemory([&] { return operation_.Stage(in_eager_buffers); });
  EPD_FAILPOINT("client.stage.eager");
  return status->ok();
}

// What ranks have published for themselves stays good whatever the worker says, or epd in its place: both see to it that
// nobody can publish any more before they say so.
Status Call::Answered() {
  const shm::SlotDirect told = (*slot_).direct;
  if (direct_ && (!answer_.ok() || told.met != 0)) met_ = direct_->AllHavePublished();
  if (direct_) formation_.direct->Note(ProgramCall(), met_);
  if (met_) {
    TakeDirect();
    return {};
  }
  if (direct_) direct_->Withdraw();
  direct_.reset();
  if (!answer_.ok()) return answer_;
  if (told.met != 0) {
    return MakeStatus(Code::kDataLoss, "a peer took back what it had published; join again");
  }
  if (told.generation != 0) {
    // Without, the next call asks the worker, too.
    (void)InMemory([&]() -> Status {
      formation_.direct->Learn(ProgramCall(),
                               {.execution = told.execution, .generation = told.generation});
      return {};
    });
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

bool Call::TryDirect() {
  bool published = false;
  const Status tried = InMemory([&]() -> Status {
    published = TryPublish();
    return {};
  });
  if (!published) direct_.reset();
  return tried.ok() && published;
}

bool Call::TryPublish() {
  if (!formation_.goes_direct) return false;
  // An overflow is the worker's to say: it knows every rank's.
  if (shm::Scatters(request_.kind) && !formation_.spec.drop_on_overflow &&
      request_.announce.demand > request_.recv_capacity) {
    return false;
  }
  const std::optional<DirectPrograms::Turn> turn = formation_.direct->Begin(ProgramCall());
  if (!turn) return false;
  direct_.emplace(formation_, request_.rank, slot_.pool());
  const DirectCall::Said said = {.eager_buffer = request_.announce.eager_buffer,
                                 .name = TextOf(key_),
                                 .routes = operation_.routes()};
  if (!direct_->Publish(request_, *turn, said)) return false;
  EPD_FAILPOINT("client.direct.published");
  deadline_ = Clock::now() + formation_.direct_wait;
  return true;
}

// False: not by `until`.
bool Call::Meet(Clock::time_point until) {
  const DirectCall::Met met = direct_->Await(deadline_, until);
  if (met == DirectCall::Met::kNotYet) return false;
  met_ = met == DirectCall::Met::kYes;
  if (!met_) {
    request_.announce.published = direct_->HandOver();
    EPD_FAILPOINT("client.direct.handed_over");
    Announce();
    return true;
  }
  formation_.direct->Note(ProgramCall(), true);
  TakeDirect();
  GoOnAdmitted();
  return true;
}

void Call::TakeDirect() {
  EPD_FAILPOINT("client.direct.met");
  published_ = true;
  NoteStaged(true);
  for (uint32_t rank = 0; rank < formation_.arenas.size(); ++rank) {
    AddEagerStage(rank, direct_->EagerBufferOf(rank));
  }
  admitted_.stages = stages_;
  if (request_.kind == shm::Kind::kPrepare) admitted_.plan_id = direct_->plan_id();
}

Status Call::ReadDirect() {
  std::function<bool()> is_free = DirectCall::MakeIsFree(shared_formation_, *direct_);
  Status read = InMemory([&] { return Read(); });
  direct_->Finish(Clock::now(), read.ok() ? operation_.padded_rows() : 0);
  slot_.LeaveUntil(std::move(is_free));
  return read;
}

Status Call::ReadAndFree() {
  Status read = InMemory([&] { return Read(); });
  EPD_FAILPOINT("client.pull.done");
  // Also after an error: it is this rank's alone now, and the others' regions must not wait for it.
  request_.step = shm::Step::kPulled;
  (*slot_).request = request_;
  slot_.ArmAndLeave();
  EPD_FAILPOINT("client.pulled.said");
  return read;
}

void Call::SetKey() {
  request_.group_id = formation_.group_id;
  request_.epoch = formation_.epoch;
  request_.formation = formation_.formation;
  std::copy(key_.program.begin(), key_.program.end(), request_.program);
  request_.execution = *key_.execution;
  request_.ordinal = key_.ordinal;
  request_.occurrence = key_.occurrence;
  request_.has_name = key_.name.empty() ? 0 : 1;
  request_.spec_hash = formation_.spec_hash;
}

// An announce with an error is never admitted: it fails with what the worker knows, or, where it has
// not heard of the formation's end yet, ends the execution with `cause` for everybody.
Status Call::AskWhyEnded(const Status& cause) {
  if (!slot_.valid()) return cause;
  SetKey();
  SetError(cause);
  request_.step = shm::Step::kAnnounce;
  (*slot_).request = request_;
  (*slot_).reply.message[0] = '\0';
  const uint32_t answer = slot_.ArmAndWait(Clock::now() + kAnswerGrace, formation_.spin);
  const std::string text(text::Read((*slot_).reply.message));
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

void Call::TakeEagerBuffers() {
  TakeNames((*slot_).reply);
  NoteStaged(true);
  for (uint32_t rank = 0; rank < formation_.arenas.size(); ++rank) {
    AddEagerStage(rank, rank < limits::kEagerRanks ? (*slot_).eager.eager_buffer_of_rank[rank]
                                                   : shm::kMaxEagerBuffers);
  }
  admitted_.stages = stages_;
}

// How far they go says what stands there, as it says how many rows these are; further than all eager buffers they do not.
void Call::AddEagerStage(uint32_t rank, uint64_t eager_buffer) {
  const shm::Area& area = slot_.eager_buffers();
  const Formation::Arena& arena = formation_.arenas[rank];
  const std::optional<uint64_t> offset = formation_.eager_buffers->OffsetOf(eager_buffer, area);
  const uint64_t arena_bytes = arena.mapping == nullptr ? 0 : arena.bytes();
  if (!offset || *offset >= arena_bytes) return AddStage(rank, std::nullopt, 0);
  AddStage(rank, offset,
           std::min((shm::kMaxEagerBuffers - eager_buffer) * area.stride, arena_bytes - *offset));
}

void Call::NoteStaged(bool taken) const {
  if (num_staged_ > 1) formation_.eager_buffers->NoteLarge(taken);
}

// The next rank's stage; nothing for the own one, and where it does not lie in the rank's arena.
void Call::AddStage(uint32_t rank, std::optional<uint64_t> offset, uint64_t bytes) {
  const Formation::Arena& arena = formation_.arenas[rank];
  const bool inside = rank != request_.rank && arena.mapping != nullptr && offset &&
                      *offset <= arena.bytes() && bytes <= arena.bytes() - *offset;
  stages_.push_back(inside ? StageRef{arena.data() + *offset, bytes} : StageRef{});
}

void Call::Publish() {
  phase_ = "publish";
  EPD_FAILPOINT("client.stage.begin");
  own_ = InMemory([&] { return admission_.ok() ? operation_.Stage(admitted_) : admission_; });
  EPD_FAILPOINT("client.stage.done");
  if (!own_.ok()) SetError(own_);
  Submit(shm::Step::kPublish,
         Positive(formation_.spec.deadlines.undecided, std::chrono::seconds(30)));
  state_ = State::kPublished;
}

Status Call::TakePublished() {
  if (!answer_.ok()) return answer_;
  EPD_FAILPOINT("client.publish.answered");
  out_offset_ = (*slot_).reply.out_offset;
  state_ = State::kRead;
  return own_;
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

void Call::Submit(shm::Step step, std::chrono::nanoseconds limit) {
  request_.step = step;
  (*slot_).request = request_;
  (*slot_).reply.message[0] = '\0';
  deadline_ = Clock::now() + limit + kAnswerGrace;
  slot_.Arm();
}

// False: not by `until`. An answer with a code becomes its status.
bool Call::AwaitAnswer(Clock::time_point until) {
  const std::optional<uint32_t> answer = slot_.WaitUntil(until, deadline_, formation_.spin);
  if (!answer) return false;
  answer_ = StatusOf(*answer);
  return true;
}

Status Call::StatusOf(uint32_t answer) {
  if (answer == 0) return {};
  Status status{CodeFromNumber(answer), std::string(text::Read((*slot_).reply.message))};
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

}  // namespace epd::client
