#include "client/jax/call_site.h"

#include <algorithm>
#include <utility>

namespace epd::jax {
namespace {

struct Compilation {
  client::Mutex mutex;
  std::shared_ptr<Executable> executable EPD_GUARDED_BY(mutex);
};

std::atomic<bool> process_wide{false};

// Leaked: XLA may still compile while the process ends.
Compilation& Current() {
  static Compilation* const whole_process = new Compilation;
  thread_local Compilation this_thread;
  return process_wide.load(std::memory_order_acquire) ? *whole_process : this_thread;
}

std::atomic<std::uint64_t> next_executable_id{1};

// Those that live. Leaked: the last ones end with the process.
struct Living {
  client::Mutex mutex;
  std::set<const Executable*> executables EPD_GUARDED_BY(mutex);
};

Living& AllLiving() {
  static Living* const living = new Living;
  return *living;
}

}  // namespace

const char* OperationName(Operation operation) {
  constexpr const char* kNames[] = {"prepare",           "dispatch",         "combine",
                                    "dispatch backward", "combine backward", "ragged_all_to_all"};
  return kNames[static_cast<int>(operation) - static_cast<int>(Operation::kPrepare)];
}

const char* TokensArgument(Operation operation) {
  switch (operation) {
    case Operation::kCombine:
    case Operation::kDispatchBackward:
      return "num_local_tokens";
    case Operation::kCombineBackward:
      return "the leading size of grad";
    default:
      return "the leading size of topk_idx";
  }
}

Executable::Executable() : id_(next_executable_id.fetch_add(1, std::memory_order_relaxed)) {
  const client::MutexLock lock(AllLiving().mutex);
  AllLiving().executables.insert(this);
}

Executable::~Executable() {
  const client::MutexLock lock(AllLiving().mutex);
  AllLiving().executables.erase(this);
}

std::uint32_t Executable::Add(const CallConfig& config) {
  // Tokens and capacity stay out: they may differ between ranks. So do the other sizes: a rank whose
  // program has others must find its peers, so that all are told. Programs that differ in these
  // alone share their execution numbers, as two compilations of one do. The function's name tells apart
  // those that exchange alike, as training and evaluation do: they must not meet.
  const std::int64_t numbers[] = {static_cast<std::int64_t>(config.operation), config.sizes.ranks};
  const client::MutexLock lock(mutex_);
  aliases_.insert(config.alias);
  for (const std::string& text : {config.alias, config.program}) {
    description_ += text;
    description_ += '\0';
  }
  description_.append(reinterpret_cast<const char*>(numbers), sizeof numbers);
  return num_calls_++;
}

const Digest& Executable::Seal() {
  const client::MutexLock lock(mutex_);
  if (!sealed_) {
    sealed_ = true;
    digest_ = client::DigestOf(description_);
  }
  return digest_;
}

bool Executable::AddNamed(const std::string& group, const std::string& key) {
  const client::MutexLock lock(mutex_);
  aliases_.insert(group);
  return names_.emplace(group, key).second;
}

bool Executable::Names(const std::string& alias) const {
  const client::MutexLock lock(mutex_);
  return aliases_.count(alias) != 0;
}

bool Executable::HasOneCall() const {
  const client::MutexLock lock(mutex_);
  return num_calls_ + names_.size() == 1;
}

epd_program_call MakeCall(const CallSite& site, std::int64_t run_id, std::int32_t domain,
                          std::int32_t position) {
  epd_program_call call = {};
  call.struct_size = sizeof call;
  call.alias = site.config.alias.c_str();
  call.domain = domain;
  call.position = position;
  if (!site.key.empty()) call.name = site.key.c_str();
  const Digest& program = site.executable->Seal();
  std::copy(program.begin(), program.end(), call.program);
  call.executable = site.executable->id();
  call.execution = static_cast<std::uint64_t>(run_id) + 1;  // 0 is no execution of XLA's there.
  call.site = site.ordinal;
  call.traced = &site.config.sizes;
  if (!site.config.scope.empty()) call.scope = site.config.scope.c_str();
  return call;
}

std::optional<CallSite> AddCallSite(CallConfig config) {
  Compilation& current = Current();
  const client::MutexLock lock(current.mutex);
  if (current.executable == nullptr) current.executable = std::make_shared<Executable>();
  config.sizes.struct_size = sizeof config.sizes;
  CallSite site;
  site.executable = current.executable;
  if (config.name.empty()) {
    site.ordinal = site.executable->Add(config);
  } else {
    site.key = config.name + "/" + OperationName(config.operation);
    if (!site.executable->AddNamed(config.alias, site.key)) return std::nullopt;
  }
  site.config = std::move(config);
  return site;
}

bool IsNamed(const std::string& alias) {
  Living& living = AllLiving();
  const client::MutexLock lock(living.mutex);
  for (const Executable* const one : living.executables) {
    if (one->Names(alias)) return true;
  }
  return false;
}

void EndCompile() {
  Compilation& current = Current();
  const client::MutexLock lock(current.mutex);
  current.executable = nullptr;
}

void FollowCompilesProcessWide() { process_wide.store(true, std::memory_order_release); }

}  // namespace epd::jax
