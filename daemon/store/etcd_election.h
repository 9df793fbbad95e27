// Runs one node's Election against etcd: its lease, its watch, its transactions.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/core/backoff.h"
#include "daemon/store/election.h"
#include "daemon/store/election_inbox.h"
#include "daemon/store/etcd_calls.h"
#include "proto/machine/thread.h"

namespace epd {

// What the rest of epd is told; each follows from an ElectionAction.
struct StoreNews {
  ElectionAction action;  // Lead, Follow, NoLeader or StoreProblem.
  // The other living nodes when the action is Lead: whom to listen to before anything is formed.
  std::vector<std::string> nodes;
  KeptValues kept = {};  // What earlier coordinators kept, then too.
};

// Two threads: one owns the election and calls etcd, one waits in the watch and wakes it.
class EtcdElection {
 public:
  struct Options {
    EtcdAddress etcd;
    EtcdAccess access = {};
    Leadership self;  // `address` empty: never leads.
    absl::Duration lease = absl::Seconds(3);
  };
  // `on_news` is called on the election's thread and must not block.
  EtcdElection(Options options, std::function<void(StoreNews)> on_news);
  // Once, before anything else.
  //   RESOURCE_EXHAUSTED  a thread
  absl::Status Start();
  // Gives the leadership up (revokes the lease, if etcd answers within a second) and joins.
  ~EtcdElection();

  // Thread-safe: the coordinator `leader` refuses connections.
  void Refused(const Leadership& leader) { inbox_.Refuse(leader); }
  // Thread-safe: this node shall lead no more with the epochs that it has, and stands again for new ones.
  void Resign() { inbox_.Resign(); }
  // Thread-safe. Written soon, and again until etcd takes it; then `kept` is called on the
  // election's thread. A later call replaces one that etcd has not taken.
  void Keep(KeepRequest request) { inbox_.Keep(std::move(request)); }

  struct Lease {
    std::string holder;    // Who leads; empty: nobody, or it is not known.
    int64_t revision = 0;  // Of the coordinator key.
    // By CLOCK_MONOTONIC: until then this node's own lease may be relied on.
    absl::Time held_until;
  };
  // Thread-safe: as of the last turn of the election's thread.
  Lease lease() const {
    const absl::MutexLock lock(&mutex_);
    return known_lease_;
  }

 private:
  void Run();
  void RunWatch();

  // ---- the election's thread ----
  void Turn();
  void GiveUp();
  void KeepLease();
  void Register();
  void ReadKeys();
  void Perform(const Election::Actions& actions);
  void TryToWin(const Campaign& campaign);
  void WriteKept(KeepRequest wanted);
  void NoteLease();
  void Tell(ElectionAction action);
  std::vector<std::string> OthersToHear() const;
  // How long one call may take: never past the moment at which a leader must step down.
  absl::Duration Patience();
  absl::Time WaitUntil();

  const Options options_;
  const std::function<void(StoreNews)> on_news_;
  EtcdCalls calls_;
  Election election_;
  int64_t lease_ = 0;
  absl::Time next_keepalive_ = absl::InfinitePast();
  absl::Time next_read_ = absl::InfinitePast();
  ClusterKeys keys_;
  ClusterKeys settled_;      // The last ones with a coordinator.
  bool registered_ = false;  // Others read in etcd that this node lives.
  // Between tries of what fails.
  Backoff leases_;
  Backoff reads_;
  Backoff keeps_;
  absl::Time next_keep_ = absl::InfinitePast();
  int64_t leading_revision_ = 0;  // Of this node's last win.
  KeptValues stored_;             // What etcd keeps, since then.

  ElectionInbox inbox_;
  mutable absl::Mutex mutex_;
  Lease known_lease_ ABSL_GUARDED_BY(mutex_);

  Thread thread_;
  Thread watch_;
};

}  // namespace epd
