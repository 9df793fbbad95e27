#include "daemon/backend/nccl_ep/ep_link.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/backend/nccl_ep/ep_environment.h"

namespace epd::nccl_ep {

using cuda::CommState;

namespace {

// Of the library's kernels for each other: a peer may still be compiling. Here an operation is late before.
constexpr absl::Duration kLeastTimeout = absl::Minutes(2);

}  // namespace

EpLink::EpLink(cuda::CudaDevice& device, const cuda::LoadedNccl& nccl, const EpLinkOptions& options)
    : device_(device), nccl_(nccl), options_(options), gate_(nccl.table, options.communicator) {}

EpLink::~EpLink() {
  if (!thread_.open() && phase_ == Phase::kGone) return;
  // A call's thread is left to the end of the process, and so is what it uses; and what the library made is
  // destroyed together with the peers or, when this process ends first, not at all.
  static auto* const left = new std::vector<const EpSession*>;
  left->push_back(session_.release());
}

CommState EpLink::state() const {
  switch (phase_) {
    case Phase::kNew:
      return CommState::kNone;
    case Phase::kAsking:
    case Phase::kGate:
    case Phase::kEntering:
    case Phase::kWarming:
      return ends_ ? CommState::kAborting : CommState::kForming;
    case Phase::kReady:
      return ends_ ? CommState::kAborting : CommState::kReady;
    case Phase::kLeaving:
      return CommState::kAborting;
    case Phase::kGone:
      break;
  }
  return CommState::kGone;
}

std::string EpLink::Where() const {
  const cuda::CommunicatorOptions& in = options_.communicator;
  return absl::StrCat("group_id=", in.group_id, " epoch=", in.epoch, " rank=", in.rank,
                      " backend=nccl_ep");
}

bool EpLink::busy() const {
  if (gate_.calling() && phase_ != Phase::kGone) return true;
  return phase_ != Phase::kNew && phase_ != Phase::kGone && (phase_ != Phase::kReady || ends_);
}

void EpLink::Break(const std::string& why) {
  if (!broken_.ok()) return;
  broken_ = absl::AbortedError(absl::StrCat(Where(), ": ", why, "; this worker is replaced"));
}

void EpLink::Gone(const absl::Status& cause) {
  if (cause_.ok()) cause_ = cause;
  gate_.PeerLost("the group", absl::InfinitePast());
  phase_ = Phase::kGone;
  deadline_ = absl::InfiniteFuture();
}

// ---- forming ----

cuda::MoveRoom EpLink::room() const {
  return {.device_bytes = WarmUpRoomOf(options_.group, options_.communicator.num_ranks).bytes,
          .host_bytes = 0};
}

void EpLink::Begin(const std::optional<cuda::NcclUniqueId>& id, const cuda::MovePlaces& places,
                   cuda::Stream stream, absl::Time now) {
  id_ = *id;
  warm_up_ = places.device;
  stream_ = stream;
  phase_ = Phase::kAsking;
  deadline_ = now + options_.communicator.form_limit;
  // It may outlive this.
  thread_.Post([table = table_, program = options_.program, nccl = nccl_.path,
                ordinal = device_.ordinal()]() -> absl::Status {
    const absl::StatusOr<const Table*> opened = OpenLibrary(program, nccl, ordinal);
    if (opened.ok()) *table = *opened;
    return opened.status();
  });
}

void EpLink::Enter(absl::Time now) {
  // One token for the first expert: every rank sends, and one receives.
  const WarmUpRoom room = WarmUpRoomOf(options_.group, options_.communicator.num_ranks);
  cuda::StreamSteps steps;
  steps.Fill(warm_up_, 0, room.bytes);
  steps.Fill(warm_up_ + room.topk + sizeof(int32_t), 0xff,
             (options_.group.top_k - 1) * sizeof(int32_t));
  const cuda::Result put = steps.Put(device_.driver(), device_.kernels(), stream_);
  if (put != cuda::kSuccess) return Break(Describe(device_.driver(), "cuMemsetD8Async", put));
  session_ = std::make_unique<EpSession>(
      SessionOptions{.driver = &device_.driver(),
                     .context = device_.context(),
                     .nccl = &nccl_.table,
                     .library = *table_,
                     .parent = gate_.handle(),
                     .num_ranks = options_.communicator.num_ranks,
                     .rank = options_.communicator.rank,
                     .group = options_.group,
                     .stream = stream_,
                     .room = warm_up_,
                     .timeout = std::max(kLeastTimeout, 2 * options_.limit),
                     .form_limit = options_.communicator.form_limit});
  phase_ = Phase::kEntering;
  deadline_ = now + options_.communicator.form_limit;
  Post([session = session_.get()] { return session->Enter(); });
}

void EpLink::LookAtGate(absl::Time now) {
  gate_.Poll(now);
  if (!gate_.broken().ok()) return Break(std::string(gate_.broken().message()));
  if (gate_.state() == CommState::kReady && phase_ == Phase::kGate) return Enter(now);
  if (gate_.state() != CommState::kGone || ends_) return;
  if (phase_ == Phase::kGate) return Gone(gate_.cause());
  // NCCL has heard of a failure before epd has; who it is, epd says.
  if (phase_ != Phase::kReady) return;
  cause_ = gate_.cause();
  ends_ = true;
  deadline_ = now + options_.limit;
}

void EpLink::LookAtStream() {
  const cuda::Result code = device_.driver().stream_query(stream_);
  if (code == cuda::kNotReady) return;
  if (code != cuda::kSuccess) {
    return Break(absl::StrCat("NCCL EP's first exchange failed: ",
                              Describe(device_.driver(), "cuStreamQuery", code)));
  }
  phase_ = Phase::kReady;
  if (!ends_) deadline_ = absl::InfiniteFuture();
}

// ---- what the thread has done ----

void EpLink::Post(std::function<absl::Status()> call) {
  holds_ = true;
  device_.streams().Hold();
  thread_.Post(std::move(call));
}

void EpLink::TakeCall(absl::Time now) {
  const std::optional<absl::Status> done = thread_.Take();
  if (!done.has_value()) return;
  if (std::exchange(holds_, false)) device_.streams().Release();
  switch (phase_) {
    case Phase::kAsking:
      if (ends_ || !done->ok()) return Gone(*done);
      phase_ = Phase::kGate;
      gate_.Begin(std::exchange(id_, {}), now);
      return;
    case Phase::kLeaving:
      return done->ok() ? Gone(absl::OkStatus()) : Break(std::string(done->message()));
    case Phase::kEntering:
      if (!done->ok()) return Break(std::string(done->message()));
      phase_ = Phase::kWarming;
      return;
    default:
      if (!done->ok()) Break(std::string(done->message()));
      return;
  }
}

void EpLink::Poll(absl::Time now) {
  if (phase_ == Phase::kNew || phase_ == Phase::kGone || !broken_.ok()) return;
  TakeCall(now);
  // While the thread splits it and makes the group, the gate is the thread's: two do not ask one communicator how far it is.
  const bool is_ours = phase_ != Phase::kAsking && phase_ != Phase::kEntering;
  if (is_ours && phase_ != Phase::kGone) LookAtGate(now);
  if (phase_ == Phase::kWarming) LookAtStream();
  if (phase_ == Phase::kReady && ends_ && !in_use()) Leave(now);
  CheckDeadline(now);
}

void EpLink::CheckDeadline(absl::Time now) {
  if (now < deadline_ || phase_ == Phase::kGate || phase_ == Phase::kGone) return;
  switch (phase_) {
    case Phase::kAsking:
      return Break("asking for NCCL EP took too long");
    case Phase::kEntering:
    case Phase::kWarming:
      return Break(
          absl::StrCat("NCCL EP has not created the group, compiled its kernels and "
                       "exchanged a first token within ",
                       absl::FormatDuration(options_.communicator.form_limit)));
    default:
      return Break("NCCL EP has not come to its end in time");
  }
}

// ---- the end ----

void EpLink::Leave(absl::Time now) {
  phase_ = Phase::kLeaving;
  deadline_ = now + options_.limit;
  Post([session = session_.get()] { return session->Leave(); });
}

void EpLink::End(const std::string& who, bool worker_gone, absl::Time now) {
  if (phase_ == Phase::kGone || phase_ == Phase::kLeaving) return;
  const bool inside = phase_ == Phase::kEntering || phase_ == Phase::kWarming;
  if (worker_gone && (inside || (phase_ == Phase::kReady && in_use()))) {
    return Break(absl::StrCat(who, " is lost while NCCL EP had work on this device, which waits ",
                              "for it and can be ended by nobody"));
  }
  if (phase_ == Phase::kNew || phase_ == Phase::kGate) {
    return Gone(absl::UnavailableError(absl::StrCat(Where(), ": ", who, " is lost")));
  }
  if (ends_) return;
  ends_ = true;
  // All members live, so what is under way comes to its end.
  if (!inside && phase_ != Phase::kAsking) deadline_ = now + options_.limit;
}

void EpLink::OperationLate(absl::Time) { Break("an operation that was issued did not complete"); }

// ---- operations ----

absl::StatusOr<std::unique_ptr<cuda::MemberRows>> EpLink::Rows(const MoveGroup& group,
                                                               const MoveJob& job) {
  const int self = options_.communicator.rank;
  if (job.kind == shm::Kind::kPrepare) return cuda::NativeRows::Create(group, job, self);
  return EpRows::Create(group, job, options_.group, self, known_);
}

absl::Status EpLink::Issue(const cuda::MoveSteps& steps, cuda::Stream stream, absl::Time now) {
  if (state() != CommState::kReady) {
    return absl::FailedPreconditionError(absl::StrCat(Where(), ": it is not ready"));
  }
  if (!steps.library.has_value()) {
    absl::Status issued = gate_.Issue(steps.exchange, stream, now);
    if (issued.ok()) open_.push_back(true);
    return issued;
  }
  open_.push_back(false);
  Post([session = session_.get(), call = *steps.library] { return session->Run(call); });
  return absl::OkStatus();
}

bool EpLink::launching() const { return thread_.open() || gate_.launching(); }

void EpLink::Completed() {
  if (open_.empty()) return;
  if (open_.front()) gate_.Completed();
  open_.pop_front();
}

}  // namespace epd::nccl_ep
