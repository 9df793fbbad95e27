// What XLA knows of one epd call in a compiled program: static configuration and a place in it.
//
// XLA instantiates the handlers of an executable one after another while it compiles or loads it,
// in the same order in every process. So the n-th instance since the compilation began is the same
// call on every rank: its *ordinal*. The Python package calls EndCompile around every compilation.
//
// An executable holds nothing of this process or job: no pointer, path, pid or communicator.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "client/c/digest.h"
#include "client/c/mutex.h"
#include "client/program/epd_program.h"
#include "proto/epd/v1/segment.h"

namespace epd::jax {

// The first five are those of shm::Kind.
enum class Operation : std::uint32_t {
  kPrepare = 1,
  kDispatch,
  kCombine,
  kDispatchBackward,
  kCombineBackward,
  kRaggedAllToAll,
};
static_assert(static_cast<std::uint32_t>(Operation::kCombineBackward) ==
              static_cast<std::uint32_t>(shm::Kind::kCombineBackward));

// Name of the operation in messages and keys, for example "dispatch backward".
const char* OperationName(Operation operation);

// The argument of it that says how many tokens there are.
const char* TokensArgument(Operation operation);

// Static attributes of a call. All are equal on all ranks, but for `tokens` and the capacity.
struct CallConfig {
  Operation operation = Operation::kPrepare;
  std::string alias;          // Which group of this process: "default".
  std::string name;           // Static name by which ranks find each other; empty: by the program.
  std::string program;        // Name of the function that was compiled: "jit_train_step".
  std::string scope;          // Where in it the call stands (jax.named_scope), for people.
  epd_program_sizes sizes{};  // With the capacity of this call.
  std::int64_t top_k = 0;
  std::int64_t alignment = 0;
  std::int64_t width = 0;   // Elements of a row of this call, 0: prepare.
  std::int64_t tokens = 0;  // T of this call; ragged_all_to_all: 1 where rows are added.
  std::int64_t shards = 1;  // Ranks whose tokens the caller's arrays hold, for messages.
};

using client::Digest;

// One compilation's calls, in ordinal order. Thread-safe.
class Executable {
 public:
  Executable();
  ~Executable();
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;

  // Unique in this process.
  std::uint64_t id() const { return id_; }

  // Appends a call without a name and returns its ordinal.
  std::uint32_t Add(const CallConfig& config);

  // Notes a call with a name, which is no part of the digest: its identity is `key` in `group`.
  // False if there is one already.
  bool AddNamed(const std::string& group, const std::string& key);

  // Digest of the calls and of the names of the functions that they were compiled in, the same on every
  // rank that compiled the same program. Seals the executable: XLA instantiates every call before it
  // executes the first.
  const Digest& Seal();

  // Whether it has a call in the alias's group.
  bool Names(const std::string& alias) const;

  // True if no second call of an execution can be under way beside one: there is no other call
  // site, and the uses of one site in a loop come one after another.
  bool HasOneCall() const;

 private:
  const std::uint64_t id_;
  mutable client::Mutex mutex_;
  bool sealed_ EPD_GUARDED_BY(mutex_) = false;
  std::string description_ EPD_GUARDED_BY(mutex_);
  std::uint32_t num_calls_ EPD_GUARDED_BY(mutex_) = 0;
  std::set<std::pair<std::string, std::string>> names_ EPD_GUARDED_BY(mutex_);  // Group and key.
  std::set<std::string> aliases_ EPD_GUARDED_BY(mutex_);
  Digest digest_{};  // Fixed once sealed.
};

// State of one call in XLA's hands, shared by all local devices; dies with the executable.
struct CallSite {
  CallConfig config;
  std::shared_ptr<Executable> executable;
  std::uint32_t ordinal = 0;  // Among the calls without a name.
  std::string key;            // "<name>/<operation>" for a call with a name.
};

// The call of an execution (XLA's run id) at a place. What it points to is the site's.
epd_program_call MakeCall(const CallSite& site, std::int64_t run_id, std::int32_t domain,
                          std::int32_t position);

// Makes the next call of the compilation that goes on in this thread; nothing if its name is taken
// by another call of the same operation there.
std::optional<CallSite> AddCallSite(CallConfig config);

// Whether an executable that lives has a call in the alias's group.
bool IsNamed(const std::string& alias);

// The next AddCallSite of this thread begins another executable.
void EndCompile();

// JAX before 0.11 instantiates on other threads than the one that compiles: then one compilation at
// a time is followed, in the whole process.
void FollowCompilesProcessWide();

}  // namespace epd::jax
