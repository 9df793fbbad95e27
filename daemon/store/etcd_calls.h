// The few calls of etcd's v3 API that a cluster's coordination needs, with deadlines and named errors.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/store/election.h"
#include "daemon/store/leadership.h"
#include "proto/etcd/rpc.grpc.pb.h"

namespace epd {

// etcd://host:port[,host:port...][/cluster]
struct EtcdAddress {
  std::vector<std::string> endpoints;
  std::string cluster = "default";
};

// How to be let in. All empty: a plain connection and no user.
struct EtcdAccess {
  std::string ca;             // PEM file: TLS.
  std::string cert;           // PEM files of this node's own certificate,
  std::string key;            // Where etcd wants one.
  std::string user;           // Of etcd's users,
  std::string password_file;  // ... with the first line of this file.
};

//   INVALID_ARGUMENT  names what was got and the form that is expected
absl::StatusOr<EtcdAddress> ParseEtcdAddress(const std::string& text);

struct ClusterKeys {
  std::optional<Leadership> leader;
  uint64_t ceiling = 0;  // 0: no epoch was ever given out.
  int64_t ceiling_revision = 0;
  int64_t revision = 0;                      // Of the store.
  std::map<std::string, std::string> nodes;  // Living ones: name -> address.
};

struct Won {
  int64_t revision = 0;
  EpochBlock block;
  KeptValues kept;  // By earlier coordinators.
};

// Each call tries the endpoints in turn, the one that worked last first, until `deadline`. Blocks.
// One thread; Watch may be called by another.
//   UNAVAILABLE        no endpoint answers: names them
//   DEADLINE_EXCEEDED  an endpoint accepted the call and does not answer
//   UNAUTHENTICATED    etcd does not know the user, or a file of `access` cannot be read
//   PERMISSION_DENIED  the user may not read or write below "/epd/<cluster>/"
class EtcdCalls {
 public:
  EtcdCalls(const EtcdAddress& address, EtcdAccess access);

  // Whole seconds, at least 2: etcd rounds up to that.
  absl::StatusOr<int64_t> GrantLease(absl::Duration ttl, absl::Duration patience);
  //   NOT_FOUND  it has expired
  absl::Status KeepAlive(int64_t lease, absl::Duration patience);
  absl::Status Revoke(int64_t lease, absl::Duration patience);
  // Says that `node` lives, for as long as the lease does.
  absl::Status Register(const std::string& node, const std::string& address, int64_t lease,
                        absl::Duration patience);
  absl::StatusOr<ClusterKeys> Read(absl::Duration patience);
  // Puts `self` into the coordinator key, if its revision is the one that `campaign` expects and
  // nobody has taken epochs since `seen` was read.
  //   ABORTED  somebody was faster
  absl::StatusOr<Won> Win(const Leadership& self, const Campaign& campaign, const ClusterKeys& seen,
                          int64_t lease, absl::Duration patience);

  // Makes what is kept equal to `wanted`, given that it is `stored`, if the coordinator key's
  // revision is still `revision`.
  //   ABORTED  somebody else coordinates; nothing was written
  absl::Status Keep(int64_t revision, const KeptValues& stored, const KeptValues& wanted,
                    absl::Duration patience);

  // A stream that says when anything of the cluster changes; valid while `context` lives.
  std::unique_ptr<grpc::ClientReaderWriter<etcdserverpb::WatchRequest, etcdserverpb::WatchResponse>>
  Watch(grpc::ClientContext* context);

 private:
  struct Endpoint {
    std::string address;
    std::unique_ptr<etcdserverpb::KV::Stub> kv;
    std::unique_ptr<etcdserverpb::Lease::Stub> lease;
    std::unique_ptr<etcdserverpb::Watch::Stub> watch;
    std::unique_ptr<etcdserverpb::Auth::Stub> auth;
  };

  template <typename Call>
  absl::Status Try(absl::Duration patience, Call call);
  // Calls with the token of `access_.user`, which it gets first where there is none.
  template <typename Call>
  grpc::Status CallOne(Endpoint& endpoint, absl::Time deadline, Call call);
  grpc::Status LogIn(Endpoint& endpoint, absl::Time deadline);
  std::string Token();
  std::string AdviceFor(const grpc::Status& refused) const;

  const EtcdAccess access_;
  std::string prefix_;  // "/epd/<cluster>/"
  std::vector<Endpoint> endpoints_;
  std::atomic<size_t> current_{0};  // Index of the endpoint that worked last.
  absl::Mutex mutex_;
  std::string token_ ABSL_GUARDED_BY(mutex_);  // Of the last login; empty: none, or it is over.
};

}  // namespace epd
