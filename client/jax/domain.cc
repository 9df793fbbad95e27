#include "client/jax/domain.h"

#include <utility>
#include <vector>

namespace epd::jax {
namespace {

epd_group_spec SpecOf(const GroupConfig& config, const std::string& name) {
  epd_group_spec spec = {};
  spec.struct_size = sizeof spec;
  spec.name = name.c_str();
  spec.instance = config.instance.c_str();
  spec.num_ranks = config.ranks;
  spec.num_experts = config.experts;
  if (!config.expert_owner.empty()) spec.expert_owner = config.expert_owner.data();
  spec.max_tokens_per_rank = config.max_tokens;
  spec.recv_capacity_per_rank = config.recv_capacity;
  spec.hidden = config.hidden;
  spec.top_k = config.top_k;
  spec.max_token_dtype = config.max_dtype;
  spec.drop_on_overflow = config.drop_on_overflow ? 1 : 0;
  spec.executor = config.executor;
  if (!config.backend.empty()) spec.backend = config.backend.c_str();
  spec.warn_after_ms = config.warn_after_ms;
  spec.absent_ms = config.absent_ms;
  spec.undecided_ms = config.undecided_ms;
  spec.form_ms = config.form_ms;
  return spec;
}

}  // namespace

Domain::Domain(const GroupConfig& config, std::uint32_t index, Connect connect)
    : config_(config),
      index_(index),
      name_(config.job + "/" + config.alias + "/" + std::to_string(index)),
      connect_(std::move(connect)) {}

std::uint64_t Domain::epoch() const {
  const client::MutexLock lock(mutex_);
  return last_epoch_;
}

Status Domain::Join() {
  const client::MutexLock lock(mutex_);
  return JoinLocked();
}

Status Domain::JoinLocked() {
  std::shared_ptr<Session> session;
  Status status = connect_(&session);
  if (!status.ok()) return status;

  std::vector<std::uint32_t> ranks;
  std::vector<const char*> devices;
  for (const auto& [rank, device] : config_.held.at(index_)) {
    ranks.push_back(rank);
    devices.push_back(device.c_str());
  }
  const epd_group_spec spec = SpecOf(config_, name_);
  epd_join_args args = {};
  args.struct_size = sizeof args;
  args.spec = &spec;
  args.ranks = ranks.data();
  args.num_ranks = ranks.size();
  args.devices = devices.data();
  args.min_epoch = last_epoch_;
  if (!config_.program.empty()) args.program = config_.program.c_str();
  if (!config_.metadata.empty()) args.metadata = config_.metadata.c_str();
  epd_error error = {};
  error.struct_size = sizeof error;
  epd_group* group = nullptr;
  const int code = epd_join(session->client(), &args, &group, &error);
  if (code != EPD_OK) return FromError(code, error);
  membership_ = std::make_shared<Membership>(std::move(session), group, ++num_memberships_);
  last_epoch_ = membership_->epoch();
  return {};
}

std::string Domain::Place(std::uint32_t rank) const {
  return "group=" + name_ + " epoch=" + std::to_string(last_epoch_) +
         " rank=" + std::to_string(rank) + " phase=begin";
}

Status Domain::CheckLocked(std::uint32_t rank, std::shared_ptr<Membership>* lost) {
  if (closed_) {
    return {kFailedPrecondition, "[epd:FAILED_PRECONDITION] " + Place(rank) +
                                     ": the group was left (finalize); join it again"};
  }
  if (membership_ == nullptr) return {};
  const Status living = membership_->Check();
  if (living.ok()) return {};
  *lost = std::exchange(membership_, nullptr);
  return {living.code, living.message + "; " + Place(rank) +
                           ": this call fails, the next one joins the group again"};
}

Status Domain::Begin(const Runs::Call& call, ActiveCall* active) {
  std::shared_ptr<Membership> lost;  // Leaves after the lock.
  const client::MutexLock lock(mutex_);
  if (Status refused = CheckLocked(call.rank, &lost); !refused.ok()) {
    if (lost != nullptr) runs_.Condemn(call, lost->number());
    return refused;
  }
  const std::uint64_t current =
      membership_ != nullptr ? membership_->number() : num_memberships_ + 1;
  if (runs_.IsStale(call, current)) {
    return {kAborted,
            "[epd:ABORTED] " + Place(call.rank) +
                ": this execution began before the session with epd was lost; run it again"};
  }
  if (membership_ == nullptr) {
    const Status joined = JoinLocked();
    if (!joined.ok()) {
      runs_.Condemn(call, num_memberships_);
      return joined;
    }
  }
  epd_group* const group = membership_->group();
  const auto begin = [group](std::uint32_t rank, const Digest& program) {
    return epd_begin_execution(group, rank, program.data());
  };
  switch (runs_.Start(call, membership_->number(), begin, &active->number_)) {
    case Runs::Outcome::kOk:
      break;
    case Runs::Outcome::kStale:
      return {kInternal,
              "[epd:INTERNAL] " + Place(call.rank) + ": a stale execution was let through"};
    case Runs::Outcome::kOverlap:
      active->refusal_ = {kFailedPrecondition,
                          "two executions of the same program are under way on this rank's "
                          "device, so ranks cannot tell which is which; launch them from one "
                          "thread, in the same order on all ranks"};
      break;
  }
  ++num_begun_;
  active->membership_ = membership_;
  active->group_ = group;
  active->program_ = call.site.executable->Seal();
  return {};
}

void Domain::End(const Runs::Call& call, const std::shared_ptr<Membership>& membership,
                 const Status& status) {
  const bool lost = !status.ok() && !membership->Check().ok();
  const client::MutexLock lock(mutex_);
  runs_.End(call);
  if (lost && membership_ == membership) membership_ = nullptr;  // This call reported it.
}

Status Domain::Living(std::uint32_t rank, std::shared_ptr<Membership>* membership) {
  std::shared_ptr<Membership> lost;  // Leaves after the lock.
  const client::MutexLock lock(mutex_);
  if (Status refused = CheckLocked(rank, &lost); !refused.ok()) return refused;
  if (membership_ == nullptr) {
    if (Status joined = JoinLocked(); !joined.ok()) return joined;
  }
  *membership = membership_;
  return {};
}

Domain::Activity Domain::activity() const {
  const client::MutexLock lock(mutex_);
  return {.num_begun = num_begun_, .busy = membership_ != nullptr && membership_.use_count() > 1};
}

void Domain::Close() {
  std::shared_ptr<Membership> last;
  {
    const client::MutexLock lock(mutex_);
    closed_ = true;
    last = std::move(membership_);
    membership_ = nullptr;
  }
  if (last != nullptr) last->Leave();
}

}  // namespace epd::jax
