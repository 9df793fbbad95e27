#include "client/program/groups.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iterator>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "client/program/traced_sizes.h"

namespace epd::program {
namespace {

constexpr std::chrono::milliseconds kFinalizeGrace{2000};
// Between two calls of a program that is under way; no longer, unless it computes for so long.
constexpr std::chrono::milliseconds kQuiet{20};

// An INVALID_ARGUMENT found here, with its place before it: the group's name in the daemon, the
// epoch joined last ("unknown" if no rank of the domain is held here), the rank.
Status AtPlace(const Status& status, const GroupConfig& config, const Domain* held,
               std::int32_t domain, std::int32_t rank) {
  return {status.code, "[epd:INVALID_ARGUMENT] group=" + config.NameOf(domain) + " epoch=" +
                           (held == nullptr ? "unknown" : std::to_string(held->epoch())) +
                           " rank=" + std::to_string(rank) + " phase=begin: " + status.message};
}

// `rank`: " rank=...", or empty where it is not known.
Status NotBootstrapped(std::string_view alias, const std::string& rank) {
  return {Code::kFailedPrecondition,
          "[epd:FAILED_PRECONDITION] group=" + std::string(alias) + " epoch=none" + rank +
              " phase=begin: the group is not bootstrapped in this process; " +
              (alias == "default" ? "call ep_bootstrap" : "make it (Group) and keep it")};
}

std::string HeldRanks(const GroupConfig& config) {
  std::string text;
  for (const auto& [domain, ranks] : config.held) {
    for (const auto& [rank, device] : ranks) {
      if (!text.empty()) text += ", ";
      text += "domain " + std::to_string(domain) + " position " + std::to_string(rank);
    }
  }
  return text;
}

std::string RanksOnDevices(const GroupConfig& config) {
  std::string text;
  for (const auto& [domain, ranks] : config.held) {
    for (const auto& [rank, device] : ranks) {
      if (!text.empty()) text += ", ";
      text += "domain " + std::to_string(domain) + " position " + std::to_string(rank) + " on " +
              (device.empty() ? "no device that it said" : device);
    }
  }
  return text;
}

// The rank of a device at `position`, if this process holds it.
std::optional<std::uint32_t> HeldRank(const GroupConfig& config, std::int32_t domain,
                                      std::int32_t position) {
  const auto ranks = config.held.find(static_cast<std::uint32_t>(domain));
  if (domain < 0 || position < 0 || ranks == config.held.end()) return std::nullopt;
  if (config.by_rank) {
    if (static_cast<std::size_t>(position) >= ranks->second.size()) return std::nullopt;
    return std::next(ranks->second.begin(), position)->first;
  }
  const auto found = ranks->second.find(static_cast<std::uint32_t>(position));
  if (found == ranks->second.end()) return std::nullopt;
  return found->first;
}

Status NotHeld(const GroupConfig& config, std::int32_t domain, std::int32_t position) {
  const auto holder = config.elsewhere.find(
      {static_cast<std::uint32_t>(domain), static_cast<std::uint32_t>(position)});
  const std::string who = holder == config.elsewhere.end() ? "another process" : holder->second;
  return {Code::kInvalidArgument,
          "a device of this process (" + config.devices + ") runs as domain " +
              std::to_string(domain) + ", position " + std::to_string(position) +
              " along ep of the program's mesh, which " + who +
              " holds (held here: " + HeldRanks(config) +
              "); use a mesh whose devices stand where they stood when the group was made, or make "
              "the group anew with this mesh"};
}

// The call as `rank` makes it. One that is no part of an execution becomes one of its own, in an
// executable that nobody else has.
Runs::Call MakeCall(const epd_program_call& call, std::uint32_t rank) {
  static std::atomic<std::uint64_t> next_execution{1};
  Runs::Call own = {.executable = call.executable,
                    .execution = call.execution,
                    .site = call.site,
                    .occurrence = call.occurrence,
                    .named = call.name != nullptr,
                    .rank = rank,
                    .begun = call.begun};
  std::copy_n(call.program, own.program.size(), own.program.begin());
  if (call.execution == 0) {
    own.executable = UINT64_MAX;
    own.execution = next_execution.fetch_add(1, std::memory_order_relaxed);
  }
  return own;
}

}  // namespace

ActiveCall::ActiveCall(std::shared_ptr<Domain> domain, const Runs::Call& call, const char* text,
                       Domain::Begun begun)
    : domain_(std::move(domain)), call_(call), text_(text), begun_(std::move(begun)) {}

epd_key ActiveCall::key() const {
  epd_key key = {};
  key.struct_size = sizeof key;
  key.name = text_;  // Beside a program no part of the identity.
  if (call_.named) {
    key.execution = EPD_EXECUTION_NEXT;
    return key;
  }
  std::copy(call_.program.begin(), call_.program.end(), key.program);
  key.execution = begun_.number.execution;
  key.ordinal = call_.site;
  key.occurrence = begun_.number.occurrence;
  return key;
}

bool ActiveCall::End(const Status& status) {
  const bool again = domain_->End(call_, begun_.joined, status);
  begun_.joined = nullptr;
  return again;
}

Groups& Groups::Shared() {
  static client::Mutex mutex;
  static Groups* groups = nullptr;
  static pid_t owner = 0;
  const client::MutexLock lock(mutex);
  if (owner != getpid()) {
    groups = new Groups;  // The parent's objects stay the parent's.
    owner = getpid();
  }
  return *groups;
}

Status Groups::LivingSession(const Endpoint& endpoint, std::shared_ptr<Session>* session) {
  const client::MutexLock connecting(session_mutex_);
  std::shared_ptr<Session> ended;
  {
    const client::MutexLock lock(session_value_mutex_);
    if (session_ != nullptr && session_->Check().ok()) {
      *session = session_;
      return {};
    }
    ended = std::exchange(session_, nullptr);
  }
  ended = nullptr;  // Disconnects, unless calls still end on it.
  const Status status = Session::Connect(endpoint, session);
  if (!status.ok()) return status;
  const client::MutexLock lock(session_value_mutex_);
  session_ = *session;
  return {};
}

Status Groups::Connect(const Endpoint& endpoint) {
  std::shared_ptr<Session> session;
  return LivingSession(endpoint, &session);
}

std::string Groups::socket_path() const {
  const client::MutexLock lock(session_value_mutex_);
  return session_ == nullptr ? "" : session_->socket_path();
}

Status Groups::Join(std::shared_ptr<const GroupConfig> config) {
  auto entry = std::make_shared<Entry>();
  entry->config = config;
  if (config->joins_by_call) {
    // Several calls may have found that the alias has no group.
    const client::MutexLock lock(mutex_);
    entries_.emplace(config->alias, std::move(entry));
    return {};
  }
  if (Find(config->alias) != nullptr) {
    return {Code::kFailedPrecondition, "[epd:FAILED_PRECONDITION] group=" + config->job + "/" +
                                           config->alias +
                                           " is bootstrapped already; finalize it first"};
  }
  const FirstJoins::Scope joins(first_joins_, config->alias);
  const auto connect = [this, endpoint = config->endpoint](std::shared_ptr<Session>* session) {
    return LivingSession(endpoint, session);
  };
  // In ascending order in every process: two processes that share two domains never wait crosswise.
  for (const auto& [index, ranks] : config->held) {
    auto domain = std::make_shared<Domain>(config, index, ranks, connect);
    const Status status = domain->Join();
    if (!status.ok()) {
      for (const auto& [joined_index, joined] : entry->domains) joined->Close();
      return status;
    }
    entry->domains[index] = std::move(domain);
  }
  const client::MutexLock lock(mutex_);
  entries_[config->alias] = std::move(entry);
  return {};
}

std::shared_ptr<const Groups::Entry> Groups::Find(std::string_view alias) const {
  const client::MutexLock lock(mutex_);
  const auto found = entries_.find(alias);
  return found == entries_.end() ? nullptr : found->second;
}

Status Groups::FindFor(const epd_program_call& call, std::shared_ptr<const Entry>* entry) const {
  *entry = Find(call.alias);
  Status status;
  if (*entry == nullptr && by_call_.Describe(call, &status)) {
    if (!status.ok()) return status;
    *entry = Find(call.alias);
  }
  if (*entry != nullptr) return {};
  return NotBootstrapped(call.alias, " rank=" + std::to_string(call.position));
}

std::vector<std::shared_ptr<Domain>> Groups::DomainsOf(const Entry& entry) const {
  std::vector<std::shared_ptr<Domain>> all = by_call_.All(entry.config->alias);
  for (const auto& [index, domain] : entry.domains) all.push_back(domain);
  return all;
}

Status Groups::Wait(std::string_view alias) {
  if (Status status = first_joins_.Await(alias); !status.ok()) return status;
  const std::shared_ptr<const Entry> entry = Find(alias);
  if (entry == nullptr) return NotBootstrapped(alias, "");
  for (const std::shared_ptr<Domain>& domain : DomainsOf(*entry)) {
    std::shared_ptr<JoinedGroup> joined;
    if (Status status = domain->Living(domain->first_rank(), &joined); !status.ok()) return status;
  }
  return {};
}

int Groups::State(std::string_view alias, std::uint64_t* epoch) const {
  const std::shared_ptr<const Entry> entry = Find(alias);
  if (entry == nullptr) return first_joins_.Has(alias) ? EPD_PROGRAM_JOINING : EPD_PROGRAM_LEFT;
  int worst = EPD_PROGRAM_READY;
  for (const std::shared_ptr<Domain>& domain : DomainsOf(*entry)) {
    std::uint64_t own = 0;
    worst = std::max(worst, domain->State(&own));
    *epoch = std::max(*epoch, own);
  }
  return worst;
}

// Programs that are under way make further calls: they are let in until there are no more.
void Groups::AwaitQuiet(const Entry& entry) const {
  using Clock = std::chrono::steady_clock;
  const auto activities = [domains = DomainsOf(entry)] {
    std::vector<Domain::Activity> all;
    for (const std::shared_ptr<Domain>& domain : domains) all.push_back(domain->activity());
    return all;
  };
  const auto until = Clock::now() + kFinalizeGrace;
  auto quiet_since = Clock::now();
  for (auto seen = activities(); Clock::now() < until && Clock::now() < quiet_since + kQuiet;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const auto now = activities();
    const bool busy = std::any_of(now.begin(), now.end(), [](const auto& one) { return one.busy; });
    if (busy || now != seen) quiet_since = Clock::now();
    seen = now;
  }
}

void Groups::Finalize(std::string_view alias) {
  const std::shared_ptr<const Entry> entry = Find(alias);
  std::vector<std::shared_ptr<Domain>> domains;
  if (entry != nullptr) {
    domains = DomainsOf(*entry);
    for (const std::shared_ptr<Domain>& domain : domains) domain->StopWaiting();
    AwaitQuiet(*entry);
  }
  bool last = false;
  {
    const client::MutexLock lock(mutex_);
    const auto found = entries_.find(alias);
    if (found != entries_.end() && found->second == entry) {
      entries_.erase(found);
      by_call_.Forget(alias);
    }
    last = entries_.empty();
  }
  for (const std::shared_ptr<Domain>& domain : domains) domain->Close();
  if (!last) return;
  std::shared_ptr<Session> session;  // Disconnects after the lock.
  const client::MutexLock lock(session_value_mutex_);
  session = std::exchange(session_, nullptr);
}

Status Groups::ResolveTo(const epd_program_call& call, Resolved* resolved) const {
  std::shared_ptr<const Entry> entry;
  if (Status status = FindFor(call, &entry); !status.ok()) return status;
  const GroupConfig& config = *entry->config;
  if (config.joins_by_call) {
    if (Status places = CheckPlaces(config, call.traced); !places.ok()) {
      return AtPlace(places, config, nullptr, call.domain, call.position);
    }
    resolved->rank = static_cast<std::uint32_t>(call.position);
    resolved->domain =
        by_call_.Of(entry->config, static_cast<std::uint32_t>(call.domain), resolved->rank);
    return {};
  }
  const auto found = entry->domains.find(static_cast<std::uint32_t>(call.domain));
  if (found != entry->domains.end()) resolved->domain = found->second;
  const auto at_place = [&](const Status& status) {
    return AtPlace(status, config, resolved->domain.get(), call.domain, call.position);
  };
  if (const Status places = CheckPlaces(config, call.traced); !places.ok()) return at_place(places);
  const std::optional<std::uint32_t> rank = HeldRank(config, call.domain, call.position);
  if (resolved->domain == nullptr || !rank.has_value()) {
    return at_place(NotHeld(config, call.domain, call.position));
  }
  resolved->rank = *rank;
  resolved->refusal = CheckSizes(config, call.traced);
  return {};
}

Status Groups::Resolve(const epd_program_call& call, std::uint32_t* rank) const {
  Resolved resolved;
  Status status = ResolveTo(call, &resolved);
  if (status.ok()) *rank = resolved.rank;
  return status;
}

Status Groups::Begin(const epd_program_call& call, bool may_wait,
                     std::optional<ActiveCall>* active) {
  // What an alias means may be asked of the program, which takes its time.
  if (!may_wait && Find(call.alias) == nullptr) return {};
  Resolved resolved;
  if (Status status = ResolveTo(call, &resolved); !status.ok()) return status;
  if (!may_wait && !resolved.domain->IsJoined()) return {};
  const Runs::Call own = MakeCall(call, resolved.rank);
  Domain::Begun begun;
  begun.refusal = std::move(resolved.refusal);
  if (Status status = resolved.domain->Begin(own, may_wait, &begun); !status.ok()) return status;
  if (begun.joined == nullptr) return {};
  const char* const text = own.named ? call.name : call.scope;
  active->emplace(std::move(resolved.domain), own, text, std::move(begun));
  return {};
}

Status Groups::OnDevice(const epd_program_call& call, const std::string& device,
                        DevicePlace* place) {
  const std::shared_ptr<const Entry> entry = Find(call.alias);
  if (entry == nullptr) return NotBootstrapped(call.alias, "");
  const GroupConfig& config = *entry->config;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> here;
  for (const auto& [domain, ranks] : config.held) {
    for (const auto& [rank, name] : ranks) {
      if (name == device) here.emplace_back(domain, rank);
    }
  }
  if (here.size() != 1) {
    return {
        Code::kInvalidArgument,
        "[epd:INVALID_ARGUMENT] group=" + config.job + "/" + config.alias +
            " phase=begin: " + std::to_string(here.size()) + " ranks of this process sit on " +
            device + ", expected one (held here: " + RanksOnDevices(config) +
            "); run the program on the GPUs that the ranks joined with, or make the group with a "
            "mesh of the GPUs that it runs on (Group.join: with devices=)"};
  }
  const auto [domain, rank] = here.front();
  const std::shared_ptr<Domain> held = entry->domains.at(domain);
  Status status = CheckPlaces(config, call.traced);
  if (status.ok()) status = CheckSizes(config, call.traced);
  if (!status.ok()) {
    return AtPlace(status, config, held.get(), static_cast<std::int32_t>(domain),
                   static_cast<std::int32_t>(rank));
  }
  place->group = held->name();
  place->rank = rank;
  return held->Living(rank, &place->joined);
}

}  // namespace epd::program
