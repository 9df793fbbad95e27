#include "client/program/domain.h"

#include <chrono>
#include <cstdio>
#include <thread>
#include <utility>
#include <vector>

#include "client/c/interrupt.h"

namespace epd::program {
namespace {

// Joining goes on for as long as it lives, also after an error.
struct Joining {
  explicit Joining(std::atomic<bool>& flag) : flag(flag) { flag = true; }
  ~Joining() { flag = false; }
  std::atomic<bool>& flag;
};

constexpr std::chrono::milliseconds kJoinPause{50};  // While the daemon is away,
constexpr std::chrono::seconds kSilence{1};          // ... of which nothing is said for so long.

}  // namespace

Domain::Domain(std::shared_ptr<const GroupConfig> config, std::uint32_t index,
               std::map<std::uint32_t, std::string> ranks, Connect connect)
    : config_(std::move(config)),
      ranks_(std::move(ranks)),
      name_(config_->NameOf(index)),
      connect_(std::move(connect)) {}

int Domain::State(std::uint64_t* epoch) const {
  *epoch = last_epoch_;
  if (joining_) return EPD_PROGRAM_JOINING;
  std::shared_ptr<JoinedGroup> seen;
  {
    const client::MutexLock lock(seen_mutex_);
    seen = seen_.lock();
  }
  if (seen == nullptr || !seen->Check().ok()) return EPD_PROGRAM_LOST;
  *epoch = seen->CurrentEpoch();
  return EPD_PROGRAM_READY;
}

bool Domain::IsJoined() const {
  if (joining_) return false;
  const client::MutexLock lock(seen_mutex_);
  return !seen_.expired();
}

Status Domain::Join() {
  const client::MutexLock lock(mutex_);
  const Joining joining(joining_);
  return JoinLocked();
}

Status Domain::JoinLocked() {
  std::shared_ptr<Session> session;
  Status status = connect_(&session);
  if (!status.ok()) return status;

  std::vector<std::uint32_t> ranks;
  std::vector<const char*> devices;
  for (const auto& [rank, device] : ranks_) {
    ranks.push_back(rank);
    devices.push_back(device.c_str());
  }
  epd_group_spec spec = config_->spec;
  spec.name = name_.c_str();
  epd_join_args args = {};
  args.struct_size = sizeof args;
  args.spec = &spec;
  args.ranks = ranks.data();
  args.num_ranks = ranks.size();
  args.devices = devices.data();
  args.min_epoch = epoch();
  args.plans = plans_;
  args.program = config_->program.c_str();
  args.metadata = config_->metadata.c_str();
  epd_error error = {};
  error.struct_size = sizeof error;
  epd_group* group = nullptr;
  const int code = epd_join(session->client(), &args, &group, &error);
  if (code != EPD_OK) return FromError(code, error);
  joined_ = std::make_shared<JoinedGroup>(std::move(session), group, ++num_joins_);
  last_epoch_ = joined_->epoch();
  const client::MutexLock lock(seen_mutex_);
  seen_ = joined_;
  return {};
}

Status Domain::JoinAgainLocked(std::uint32_t rank) {
  if (joined_ != nullptr) return {};
  const Joining joining(joining_);
  const auto began = std::chrono::steady_clock::now();
  const client::Interrupts interrupts;
  bool told = false;
  while (true) {
    Status status = JoinLocked();
    const auto waited = std::chrono::steady_clock::now() - began;
    if (status.code != Code::kUnavailable || config_->reconnect_timeout.count() == 0) return status;
    if (waited >= config_->reconnect_timeout || closing_) {
      status.message += "; " + Place(rank) + ": waited " +
                        std::to_string(waited / std::chrono::seconds(1)) +
                        " s for the daemon to come back";
      return status;
    }
    if (interrupts.any()) {
      return {Code::kCancelled,
              "[epd:CANCELLED] " + Place(rank) +
                  ": interrupted (SIGINT) while it waited for the daemon to come back"};
    }
    if (!told && waited > kSilence) {
      told = true;
      std::fprintf(stderr, "epd: %s: waiting up to %lld s for the daemon to come back: %s\n",
                   Place(rank).c_str(),
                   static_cast<long long>(config_->reconnect_timeout / std::chrono::seconds(1)),
                   status.message.c_str());
    }
    std::this_thread::sleep_for(kJoinPause);
  }
}

std::string Domain::Place(std::uint32_t rank) const {
  return "group=" + name_ + " epoch=" + std::to_string(epoch()) + " rank=" + std::to_string(rank) +
         " phase=begin";
}

void Domain::LeaveBehind(const JoinedGroup& gone, bool in_order) {
  plans_ = in_order ? gone.plans() : epd_plans{};
  if (in_order) runs_.CarryOver(gone.number());
}

Status Domain::CheckLocked(std::uint32_t rank, std::shared_ptr<JoinedGroup>* lost) {
  if (closed_) {
    return {Code::kFailedPrecondition, "[epd:FAILED_PRECONDITION] " + Place(rank) +
                                           ": the group was left (finalize); join it again"};
  }
  if (joined_ == nullptr) return {};
  const Status living = joined_->Check();
  if (living.ok()) return {};
  *lost = std::exchange(joined_, nullptr);
  const bool in_order = config_->reconnect_timeout.count() > 0 && (*lost)->EndsInOrder({});
  LeaveBehind(**lost, in_order);
  if (in_order) return {};
  return {living.code, living.message + "; " + Place(rank) +
                           ": this call fails, the next one joins the group again"};
}

Status Domain::Begin(const Runs::Call& call, bool may_wait, Begun* begun) {
  std::shared_ptr<JoinedGroup> lost;  // Leaves after the lock.
  const client::MutexLock lock(mutex_);
  if (Status refused = CheckLocked(call.rank, &lost); !refused.ok()) {
    if (lost != nullptr) runs_.Condemn(call, lost->number());
    return refused;
  }
  const std::uint64_t current = joined_ != nullptr ? joined_->number() : num_joins_ + 1;
  if (runs_.IsStale(call, current)) {
    return {Code::kAborted,
            "[epd:ABORTED] " + Place(call.rank) +
                ": this execution began before the session with epd was lost; run it again"};
  }
  if (joined_ == nullptr && !may_wait) return {};
  if (const Status joined = JoinAgainLocked(call.rank); !joined.ok()) {
    runs_.Condemn(call, num_joins_);
    return joined;
  }
  const auto begin = [group = joined_->group()](std::uint32_t rank, const Digest& program) {
    return epd_begin_execution(group, rank, program.data());
  };
  switch (runs_.Start(call, joined_->number(), begin, &begun->number)) {
    case Runs::Outcome::kOk:
      break;
    case Runs::Outcome::kStale:
      return {Code::kInternal,
              "[epd:INTERNAL] " + Place(call.rank) + ": a stale execution was let through"};
    case Runs::Outcome::kOverlap:
      begun->refusal = {Code::kFailedPrecondition,
                        "two executions of the same program are under way on this rank's device, "
                        "so ranks cannot tell which is which; launch them from one thread, in the "
                        "same order on all ranks"};
      break;
  }
  ++num_begun_;
  begun->joined = joined_;
  begun->group = joined_->group();
  return {};
}

bool Domain::End(const Runs::Call& call, const std::shared_ptr<JoinedGroup>& joined,
                 const Status& status) {
  const std::chrono::milliseconds patience = config_->reconnect_timeout;
  const bool again = !status.ok() && patience.count() > 0 && joined->EndsInOrder(patience);
  const bool lost = !status.ok() && !joined->Check().ok();
  const client::MutexLock lock(mutex_);
  runs_.End(call);
  if (lost && joined_ == joined) {
    joined_ = nullptr;  // This call reported it, or is repeated.
    LeaveBehind(*joined, again);
  }
  return again;
}

Status Domain::Living(std::uint32_t rank, std::shared_ptr<JoinedGroup>* joined) {
  std::shared_ptr<JoinedGroup> lost;  // Leaves after the lock.
  const client::MutexLock lock(mutex_);
  if (Status refused = CheckLocked(rank, &lost); !refused.ok()) return refused;
  if (Status status = JoinAgainLocked(rank); !status.ok()) return status;
  *joined = joined_;
  return {};
}

Domain::Activity Domain::activity() const {
  const client::MutexLock lock(mutex_);
  return {.num_begun = num_begun_, .busy = joined_ != nullptr && joined_.use_count() > 1};
}

void Domain::Close() {
  std::shared_ptr<JoinedGroup> last;
  {
    const client::MutexLock lock(mutex_);
    closed_ = true;
    last = std::move(joined_);
    joined_ = nullptr;
  }
  if (last != nullptr) last->Leave();
}

}  // namespace epd::program
