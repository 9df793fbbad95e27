#include "daemon/store/etcd_election.h"

#include <time.h>

#include <algorithm>
#include <set>

#include "absl/algorithm/container.h"

namespace epd {
namespace {

constexpr absl::Duration kCallPatience = absl::Seconds(1);
// The watch says when to read; this is for when it is silent.
constexpr absl::Duration kReadAnyway = absl::Milliseconds(500);
// A store that is away is asked again soon, for a coordinator's lease is short, and not by all nodes at once.
constexpr absl::Duration kRetry = absl::Milliseconds(200);
constexpr absl::Duration kRarest = absl::Seconds(2);
// A watch that lasted so long was good.
constexpr absl::Duration kGoodWatch = absl::Seconds(10);

Backoff::Policy Retries(absl::Duration max) {
  return {std::min(kRetry, max), max, kGoodWatch, Backoff::kTowardsOthers};
}

absl::Time Now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return absl::TimeFromTimespec(now);
}

}  // namespace

EtcdElection::EtcdElection(Options options, std::function<void(StoreNews)> on_news)
    : options_(std::move(options)),
      on_news_(std::move(on_news)),
      calls_(options_.etcd, options_.access),
      election_({.node = options_.self.node,
                 .incarnation = options_.self.incarnation,
                 .can_lead = !options_.self.address.empty(),
                 .lease = options_.lease,
                 .campaigns = Retries(options_.lease),
                 .seed = options_.self.incarnation.value}),
      leases_(Retries(std::min(options_.lease / 3, kRarest)), options_.self.incarnation.value + 1),
      reads_(Retries(kRarest), options_.self.incarnation.value + 2),
      keeps_(Retries(kRarest), options_.self.incarnation.value + 3) {}

absl::Status EtcdElection::Start() {
  int error = StartThread(
      {"epd-watch"}, [this] { RunWatch(); }, &watch_);
  if (error != 0) return absl::ResourceExhaustedError(WhyNoThread("epd-watch", error));
  error = StartThread(
      {"epd-election"}, [this] { Run(); }, &thread_);
  if (error == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(WhyNoThread("epd-election", error));
}

EtcdElection::~EtcdElection() {
  inbox_.Stop();
  if (thread_.joinable()) thread_.join();
  if (watch_.joinable()) watch_.join();
}

// A deposed coordinator's write fails by the revision; that it is deposed the watch says.
void EtcdElection::WriteKept(KeepRequest wanted) {
  if (wanted.revision != leading_revision_) return;
  if (wanted.values != stored_ && Now() < next_keep_) return inbox_.PutBack(std::move(wanted));
  absl::Status done;
  if (wanted.values != stored_)
    done = calls_.Keep(leading_revision_, stored_, wanted.values, Patience());
  if (done.ok()) {
    stored_ = wanted.values;
    keeps_.Reset();
    Perform(election_.OnStoreDone(Now(), StoreCall::kKeep));
    return wanted.kept();
  }
  if (absl::IsAborted(done)) return;
  next_keep_ = Now() + keeps_.AfterFailure();
  Perform(election_.OnStoreError(Now(), StoreCall::kKeep, done));
  const bool silent = absl::IsUnavailable(done) || absl::IsDeadlineExceeded(done);
  if (!silent && wanted.refused != nullptr) wanted.refused(done);
  inbox_.PutBack(std::move(wanted));
}

void EtcdElection::Run() {
  while (!inbox_.stopping()) {
    Turn();
    inbox_.Wait(std::max(WaitUntil() - Now(), absl::ZeroDuration()));
  }
  if (lease_ != 0) calls_.Revoke(lease_, kCallPatience).IgnoreError();
}

void EtcdElection::Turn() {
  ElectionInbox::Taken asked = inbox_.Take();
  if (asked.woken) next_read_ = absl::InfinitePast();
  if (asked.resign) GiveUp();
  Perform(election_.OnTick(Now()));
  if (Now() >= next_keepalive_) KeepLease();
  if (Now() >= next_read_) ReadKeys();
  for (const Leadership& leader : asked.refused) Perform(election_.OnRefused(Now(), leader));
  if (asked.keep.has_value()) WriteKept(*std::move(asked.keep));
  Perform(election_.OnTick(Now()));
  NoteLease();
}

void EtcdElection::NoteLease() {
  Lease lease;
  if (election_.leader().has_value()) {
    lease.holder = election_.leader()->node;
    lease.revision = election_.leader()->revision;
  }
  lease.held_until = election_.lease_until();
  const absl::MutexLock lock(&mutex_);
  known_lease_ = std::move(lease);
}

absl::Time EtcdElection::WaitUntil() {
  return std::min({next_keepalive_, next_read_, election_.NextDeadline()});
}

absl::Duration EtcdElection::Patience() {
  const absl::Duration left = election_.NextDeadline() - Now();
  return std::clamp(left, absl::Milliseconds(10), kCallPatience);
}

// Where etcd does not answer, the key goes with its lease, or the next campaign replaces it.
void EtcdElection::GiveUp() {
  if (lease_ != 0) calls_.Revoke(std::exchange(lease_, 0), Patience()).IgnoreError();
  next_keepalive_ = absl::InfinitePast();
  Perform(election_.OnLeaseLost(Now()));
}

void EtcdElection::KeepLease() {
  const absl::Time asked = Now();
  absl::Status status;
  if (lease_ != 0) status = calls_.KeepAlive(lease_, Patience());
  if (absl::IsNotFound(status)) {
    lease_ = 0;
    Perform(election_.OnLeaseLost(Now()));
    status = absl::OkStatus();
  }
  if (status.ok() && lease_ == 0) {
    registered_ = false;
    const absl::StatusOr<int64_t> granted = calls_.GrantLease(options_.lease, Patience());
    status = granted.status();
    if (granted.ok()) lease_ = *granted;
  }
  if (!status.ok()) {
    next_keepalive_ = Now() + leases_.AfterFailure();
    return Perform(election_.OnStoreError(Now(), StoreCall::kLease, status));
  }
  leases_.Reset();
  next_keepalive_ = Now() + options_.lease / 3;
  if (!registered_) Register();
  Perform(election_.OnLease(Now(), asked));
}

// One that fails is tried again with the lease's next renewal.
void EtcdElection::Register() {
  const std::string& address = options_.self.address;
  const absl::Status done =
      calls_.Register(options_.self.node, address.empty() ? "-" : address, lease_, Patience());
  registered_ = done.ok();
  Perform(done.ok() ? election_.OnStoreDone(Now(), StoreCall::kRegister)
                    : election_.OnStoreError(Now(), StoreCall::kRegister, done));
}

void EtcdElection::ReadKeys() {
  absl::StatusOr<ClusterKeys> keys = calls_.Read(Patience());
  if (!keys.ok()) {
    next_read_ = Now() + reads_.AfterFailure();
    return Perform(election_.OnStoreError(Now(), StoreCall::kRead, keys.status()));
  }
  reads_.Reset();
  next_read_ = Now() + kReadAnyway;
  keys_ = *std::move(keys);
  if (keys_.leader.has_value()) settled_ = keys_;
  Perform(election_.OnKey(Now(), keys_.leader, keys_.revision, keys_.ceiling));
}

void EtcdElection::Perform(const Election::Actions& actions) {
  for (const ElectionAction& action : actions) {
    if (const auto* campaign = std::get_if<Campaign>(&action)) {
      TryToWin(*campaign);
    } else {
      Tell(action);
    }
  }
}

void EtcdElection::TryToWin(const Campaign& campaign) {
  const absl::StatusOr<Won> won = calls_.Win(options_.self, campaign, keys_, lease_, Patience());
  if (won.ok() || absl::IsAborted(won.status())) next_read_ = absl::InfinitePast();
  if (won.ok()) {
    leading_revision_ = won->revision;
    stored_ = won->kept;
    return Perform(election_.OnWon(Now(), won->revision, won->block));
  }
  if (absl::IsAborted(won.status())) return Perform(election_.OnLost(Now()));
  if (absl::IsNotFound(won.status())) {  // Its lease has expired.
    lease_ = 0;
    next_keepalive_ = absl::InfinitePast();
  }
  Perform(election_.OnStoreError(Now(), StoreCall::kCampaign, won.status()));
}

void EtcdElection::Tell(ElectionAction action) {
  StoreNews news{std::move(action), {}, {}};
  if (std::holds_alternative<Lead>(news.action)) {
    news.nodes = OthersToHear();
    news.kept = stored_;
  }
  on_news_(std::move(news));
}

// Who lived when there was a coordinator, and who lives now. After etcd was away for longer than the
// leases the others may not have said again that they live.
std::vector<std::string> EtcdElection::OthersToHear() const {
  std::set<std::string> names;
  for (const auto& [node, address] : settled_.nodes) names.insert(node);
  for (const auto& [node, address] : keys_.nodes) names.insert(node);
  const bool replaced = keys_.leader.has_value();  // ... by this node, for its address refused.
  if (settled_.leader.has_value()) {
    const std::string& last = settled_.leader->node;
    const auto lives = [&](const std::string& node) { return keys_.nodes.count(node) > 0; };
    const bool only_it_is_gone =
        absl::c_all_of(names, [&](const auto& node) { return lives(node) != (node == last); });
    if (replaced || only_it_is_gone) names.erase(last);
  }
  names.erase(options_.self.node);
  return {names.begin(), names.end()};
}

void EtcdElection::RunWatch() {
  Backoff watches(Retries(kRarest), options_.self.incarnation.value + 4);
  while (!inbox_.stopping()) {
    grpc::ClientContext context;
    if (!inbox_.BeginWatch([&context] { context.TryCancel(); })) return;
    const absl::Time began = Now();
    const auto stream = calls_.Watch(&context);
    etcdserverpb::WatchResponse response;
    // etcd refuses a watch inside of a stream that stays open, with an old token for one. The next one has the token that
    // the election's thread has got meanwhile.
    while (stream->Read(&response) && !response.canceled()) inbox_.Wake();
    inbox_.EndWatch();
    context.TryCancel();
    stream->Finish();
    inbox_.Wake();
    inbox_.RestUntilStopped(watches.AfterEnd(Now() - began));
  }
}

}  // namespace epd
