// Several NCCL ranks in one process, without NCCL: forms communicators out of those who enter, fails on
// command, and notes each call that breaks a rule of communicators. Thread-safe, as NCCL is.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "daemon/backend/cuda/members/nccl_table.h"

namespace epd::cuda {

class FakeNccl {
 public:
  FakeNccl();
  ~FakeNccl();
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

  const NcclTable& table() const { return table_; }
  static NcclUniqueId IdOf(uint64_t number);

  // The next call of `function` ("ncclSend") returns `code`; ncclCommGetAsyncError reports it.
  void Fail(const std::string& function, NcclResult code, int skip = 0);
  // Calls of `function` do not come back before LetGo: ncclCommAbort waits for its kernels and frees memory, and the first
  // ncclCommInitRankConfig of a process looks for plugins and networks (NCCL's init.cc), whatever config.blocking says.
  void Hold(const std::string& function);
  void LetGo();
  int num_held() const;
  // The process of this rank of the communicator is dead: it makes no call any more.
  void Kill(uint64_t id, int rank);

  // Pairs what was issued, per communicator, call by call; returns "" or what does not fit: the ranks
  // that call in different order hang, or take each other's bytes.
  std::string PairUp() const;

  std::vector<std::string> calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }
  int CountCalls(const std::string& function) const;
  // "ncclCommDestroy of id 1 rank 0: rank 2 is dead", one per broken rule.
  std::vector<std::string> violations() const {
    const std::lock_guard lock(mutex_);
    return violations_;
  }
  // Members of the communicator that live and have not aborted it, although one of it is dead.
  std::vector<int> SurvivorsThatDidNotAbort(uint64_t id) const;
  // Communicators that were entered and neither destroyed nor aborted by a living rank.
  int num_open() const;

 private:
  struct Transfer {
    bool is_send = false;
    int peer = 0;
    size_t bytes = 0;

    friend bool operator==(const Transfer&, const Transfer&) = default;
  };
  struct Member {
    uint64_t id = 0;
    int rank = 0;
    int num_ranks = 0;
    bool dead = false;
    bool finalized = false;
    bool destroyed = false;
    bool aborted = false;
    std::vector<std::vector<Transfer>> groups;  // As they were issued.
  };

  static FakeNccl& Get();
  NcclResult Enter(const char* function);
  Member* Find(NcclComm comm, const char* function);
  void Violation(const char* function, const Member& member, const std::string& what);
  std::vector<const Member*> Peers(const Member& member) const;
  bool Complete(const Member& member) const;
  NcclResult Transferred(NcclComm comm, const char* function, Transfer transfer);
  NcclResult EndGroup();

  void AwaitLetGo(const char* function);

  mutable std::recursive_mutex mutex_;
  std::condition_variable_any let_go_;
  std::string held_;
  int num_held_ = 0;
  NcclTable table_;
  std::vector<std::string> calls_;
  std::vector<std::string> violations_;
  std::map<std::string, std::pair<int, NcclResult>> failures_;
  std::map<NcclComm, Member> members_;
  uint64_t next_ = 1;
  int group_depth_ = 0;
  std::map<NcclComm, std::vector<Transfer>> grouped_;
};

}  // namespace epd::cuda
