#include "daemon/store/etcd_calls.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "daemon/tls/address.h"

namespace epd {
namespace {

constexpr char kScheme[] = "etcd://";

// "node address incarnation", in one line; names have no spaces.
std::string Encode(const Leadership& leader) {
  return absl::StrCat(leader.node, " ", leader.address, " ", leader.incarnation.value);
}

std::optional<Leadership> Decode(const mvccpb::KeyValue& stored) {
  const std::vector<std::string> parts = absl::StrSplit(stored.value(), ' ');
  Leadership leader;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[2], &leader.incarnation.value)) return {};
  leader.node = parts[0];
  leader.address = parts[1];
  leader.revision = stored.mod_revision();
  return leader;
}

std::string AfterPrefix(std::string prefix) {
  ++prefix.back();
  return prefix;
}

void PutOp(const std::string& key, const std::string& value, int64_t lease,
           etcdserverpb::TxnRequest& txn) {
  etcdserverpb::PutRequest* put = txn.add_success()->mutable_request_put();
  put->set_key(key);
  put->set_value(value);
  put->set_lease(lease);
}

void CompareRevision(const std::string& key, int64_t revision, etcdserverpb::TxnRequest& txn) {
  etcdserverpb::Compare* compare = txn.add_compare();
  compare->set_key(key);
  compare->set_target(etcdserverpb::Compare::MOD);
  compare->set_result(etcdserverpb::Compare::EQUAL);
  compare->set_mod_revision(revision);
}

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A file that cannot be read gives an empty text, with which no handshake succeeds; the error of the
// call names etcd, and LogIn names the password's file.
std::shared_ptr<grpc::ChannelCredentials> MakeCredentials(const EtcdAccess& access) {
  if (access.ca.empty()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = Contents(access.ca);
  if (options.pem_root_certs.empty()) options.pem_root_certs = "none";  // Not the system's.
  if (!access.cert.empty()) {
    options.pem_cert_chain = Contents(access.cert);
    options.pem_private_key = Contents(access.key);
  }
  return grpc::SslCredentials(options);
}

std::shared_ptr<grpc::Channel> ChannelTo(const std::string& address, const EtcdAccess& access) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // How long a connection may take to open, TLS and all.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 3'000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  // A connection whose packets vanish is given up (the second sets TCP_USER_TIMEOUT, too): after a partition the kernel
  // would try it again no sooner than the partition lasted. etcd refuses pings more often than every 5 s.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 3'000);
  arguments.SetInt("grpc.enable_http_proxy", 0);
  return grpc::CreateCustomChannel(address, MakeCredentials(access), arguments);
}

}  // namespace

absl::StatusOr<EtcdAddress> ParseEtcdAddress(const std::string& text) {
  const absl::Status bad =
      absl::InvalidArgumentError(absl::StrCat("rendezvous: got '", text,
                                              "', expected etcd://host:port[,host:port...][/name] "
                                              "with ports from 1 to 65535"));
  if (text.rfind(kScheme, 0) != 0) return bad;
  EtcdAddress address;
  std::string hosts = text.substr(sizeof(kScheme) - 1);
  if (const size_t slash = hosts.find('/'); slash != std::string::npos) {
    address.cluster = hosts.substr(slash + 1);
    hosts.resize(slash);
  }
  address.endpoints = absl::StrSplit(hosts, ',');
  for (const std::string& endpoint : address.endpoints) {
    if (!IsHostPort(endpoint, 1)) return bad;
  }
  if (address.cluster.empty() || address.cluster.find_first_of(" /") != std::string::npos)
    return bad;
  return address;
}

EtcdCalls::EtcdCalls(const EtcdAddress& address, EtcdAccess access)
    : access_(std::move(access)), prefix_("/epd/" + address.cluster + "/") {
  for (const std::string& endpoint : address.endpoints) {
    const std::shared_ptr<grpc::Channel> channel = ChannelTo(endpoint, access_);
    endpoints_.push_back(
        {endpoint, etcdserverpb::KV::NewStub(channel), etcdserverpb::Lease::NewStub(channel),
         etcdserverpb::Watch::NewStub(channel), etcdserverpb::Auth::NewStub(channel)});
  }
}

// What an operator does about an etcd that answers and refuses.
std::string EtcdCalls::AdviceFor(const grpc::Status& refused) const {
  const std::string& said = refused.error_message();
  if (absl::StrContains(said, "database space exceeded")) {
    return "; its database is full and takes no writes: etcdctl compact, then etcdctl defrag, then "
           "etcdctl "
           "alarm disarm";
  }
  if (absl::StrContains(said, "corrupt"))
    return "; a member's data is damaged and takes no writes: see etcdctl alarm list";
  if (refused.error_code() == grpc::StatusCode::PERMISSION_DENIED) {
    return absl::StrCat(
        "; etcd_user '", access_.user,
        "' must be allowed to read and write below it: etcdctl role grant-permission "
        "--prefix=true ROLE readwrite ",
        prefix_);
  }
  return "";
}

std::string EtcdCalls::Token() {
  const absl::MutexLock lock(&mutex_);
  return token_;
}

grpc::Status EtcdCalls::LogIn(Endpoint& endpoint, absl::Time deadline) {
  etcdserverpb::AuthenticateRequest request;
  const std::string contents = Contents(access_.password_file);
  request.set_name(access_.user);
  request.set_password(contents.substr(0, contents.find('\n')));
  if (request.password().empty()) {
    return {grpc::StatusCode::UNAUTHENTICATED,
            absl::StrCat("etcd_password_file '", access_.password_file,
                         "': got no password, expected one in the first line")};
  }
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(deadline));
  etcdserverpb::AuthenticateResponse response;
  grpc::Status status = endpoint.auth->Authenticate(&context, request, &response);
  if (status.error_code() == grpc::StatusCode::INVALID_ARGUMENT ||
      status.error_code() == grpc::StatusCode::FAILED_PRECONDITION) {
    status = {grpc::StatusCode::UNAUTHENTICATED,
              absl::StrCat("user '", access_.user, "' cannot log in: ", status.error_message())};
  }
  const absl::MutexLock lock(&mutex_);
  token_ = status.ok() ? response.token() : "";
  return status;
}

template <typename Call>
grpc::Status EtcdCalls::CallOne(Endpoint& endpoint, absl::Time deadline, Call call) {
  for (bool again = false;; again = true) {
    if (!access_.user.empty() && Token().empty()) {
      const grpc::Status let_in = LogIn(endpoint, deadline);
      if (!let_in.ok()) return let_in;
    }
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(deadline));
    if (!access_.user.empty()) context.AddMetadata("token", Token());
    const grpc::Status status = call(endpoint, context);
    // Tokens end by themselves, and with etcd.
    if (again || status.error_code() != grpc::StatusCode::UNAUTHENTICATED || access_.user.empty())
      return status;
    const absl::MutexLock lock(&mutex_);
    token_.clear();
  }
}

template <typename Call>
absl::Status EtcdCalls::Try(absl::Duration patience, Call call) {
  std::vector<std::string> said;
  absl::StatusCode code = absl::StatusCode::kUnavailable;
  for (size_t i = 0; i < endpoints_.size(); ++i) {
    Endpoint& endpoint = endpoints_[current_];
    const grpc::Status status =
        CallOne(endpoint, absl::Now() + patience / static_cast<int64_t>(endpoints_.size()), call);
    if (status.ok()) return absl::OkStatus();
    const auto got = static_cast<absl::StatusCode>(status.error_code());
    if (got != absl::StatusCode::kUnavailable && got != absl::StatusCode::kDeadlineExceeded)
      return absl::Status(got, absl::StrCat("etcd ", endpoint.address, ": ", status.error_message(),
                                            AdviceFor(status)));
    code = got;
    said.push_back(absl::StrCat(endpoint.address, ": ", status.error_message()));
    current_ = (current_ + 1) % endpoints_.size();
  }
  return absl::Status(code, absl::StrCat("etcd does not answer (", absl::StrJoin(said, "; "),
                                         "); is it running, and reachable from this node?"));
}

absl::StatusOr<int64_t> EtcdCalls::GrantLease(absl::Duration ttl, absl::Duration patience) {
  etcdserverpb::LeaseGrantRequest request;
  request.set_ttl(absl::ToInt64Seconds(absl::Ceil(ttl, absl::Seconds(1))));
  etcdserverpb::LeaseGrantResponse response;
  const absl::Status status = Try(patience, [&](Endpoint& endpoint, grpc::ClientContext& context) {
    return endpoint.lease->LeaseGrant(&context, request, &response);
  });
  if (!status.ok()) return status;
  return response.id();
}

absl::Status EtcdCalls::KeepAlive(int64_t lease, absl::Duration patience) {
  etcdserverpb::LeaseKeepAliveRequest request;
  request.set_id(lease);
  etcdserverpb::LeaseKeepAliveResponse response;
  const absl::Status status = Try(patience, [&](Endpoint& endpoint, grpc::ClientContext& context) {
    const auto stream = endpoint.lease->LeaseKeepAlive(&context);
    const bool answered = stream->Write(request) && stream->Read(&response);
    stream->WritesDone();
    if (answered) context.TryCancel();
    const grpc::Status ended = stream->Finish();
    return answered ? grpc::Status::OK : ended;
  });
  if (status.ok() && response.ttl() <= 0) return absl::NotFoundError("the lease has expired");
  return status;
}

absl::Status EtcdCalls::Revoke(int64_t lease, absl::Duration patience) {
  etcdserverpb::LeaseRevokeRequest request;
  request.set_id(lease);
  etcdserverpb::LeaseRevokeResponse response;
  return Try(patience, [&](Endpoint& endpoint, grpc::ClientContext& context) {
    return endpoint.lease->LeaseRevoke(&context, request, &response);
  });
}

absl::Status EtcdCalls::Register(const std::string& node, const std::string& address, int64_t lease,
                                 absl::Duration patience) {
  etcdserverpb::PutRequest request;
  request.set_key(absl::StrCat(prefix_, "nodes/", node));
  request.set_value(address);
  request.set_lease(lease);
  etcdserverpb::PutResponse response;
  return Try(patience, [&](Endpoint& endpoint, grpc::ClientContext& context) {
    return endpoint.kv->Put(&context, request, &response);
  });
}

absl::StatusOr<ClusterKeys> EtcdCalls::Read(absl::Duration patience) {
  etcdserverpb::RangeRequest request;
  request.set_key(prefix_);
  request.set_range_end(AfterPrefix(prefix_));
  etcdserverpb::RangeResponse response;
  const absl::Status status = Try(patience, [&](Endpoint& endpoint, grpc::ClientContext& context) {
    return endpoint.kv->Range(&context, request, &response);
  });
  if (!status.ok()) return status;
  ClusterKeys keys;
  keys.revision = response.header().revision();
  const std::string nodes = prefix_ + "nodes/";
  for (const mvccpb::KeyValue& stored : response.kvs()) {
    if (stored.key() == prefix_ + "coordinator") keys.leader = Decode(stored);
    if (stored.key().rfind(nodes, 0) == 0)
      keys.nodes[stored.key().substr(nodes.size())] = stored.value();
    if (stored.key() != prefix_ + "epochs") continue;
    keys.ceiling_revision = stored.mod_revision();
    if (!absl::SimpleAtoi(stored.value(), &keys.ceiling)) {
      return absl::DataLossError(absl::StrCat("etcd: ", stored.key(), " holds '", stored.value(),
                                              "', expected a number; another program wrote it"));
    }
  }
  return keys;
}

absl::StatusOr<Won> EtcdCalls::Win(const Leadership& self, const Campaign& campaign,
                                   const ClusterKeys& seen, int64_t lease,
                                   absl::Duration patience) {
  Won won;
  won.block.floor = std::max(seen.ceiling, campaign.min_floor);
  won.block.ceiling = won.block.floor + kEpochsPerLeadership;
  etcdserverpb::TxnRequest txn;
  CompareRevision(prefix_ + "coordinator", campaign.expected, txn);
  CompareRevision(prefix_ + "epochs", seen.ceiling_revision, txn);
  PutOp(prefix_ + "coordinator", Encode(self), lease, txn);
  PutOp(prefix_ + "epochs", absl::StrCat(won.block.ceiling), 0, txn);
  const std::string kept = prefix_ + "kept/";
  etcdserverpb::RangeRequest* range = txn.add_success()->mutable_request_range();
  range->set_key(kept);
  range->set_range_end(AfterPrefix(kept));
  etcdserverpb::TxnResponse response;
  const absl::Status status = Try(patience, [&](Endpoint& endpoint, grpc::ClientContext& context) {
    return endpoint.kv->Txn(&context, txn, &response);
  });
  if (!status.ok()) return status;
  if (!response.succeeded()) return absl::AbortedError("another node was faster");
  won.revision = response.header().revision();
  for (const etcdserverpb::ResponseOp& done : response.responses()) {
    for (const mvccpb::KeyValue& stored : done.response_range().kvs())
      won.kept[stored.key().substr(kept.size())] = stored.value();
  }
  return won;
}

absl::Status EtcdCalls::Keep(int64_t revision, const KeptValues& stored, const KeptValues& wanted,
                             absl::Duration patience) {
  etcdserverpb::TxnRequest txn;
  CompareRevision(prefix_ + "coordinator", revision, txn);
  const std::string kept = prefix_ + "kept/";
  for (const auto& [key, value] : wanted) {
    const auto known = stored.find(key);
    if (known == stored.end() || known->second != value) PutOp(kept + key, value, 0, txn);
  }
  for (const auto& [key, unused] : stored) {
    if (wanted.count(key) == 0)
      txn.add_success()->mutable_request_delete_range()->set_key(kept + key);
  }
  etcdserverpb::TxnResponse response;
  const absl::Status status = Try(patience, [&](Endpoint& endpoint, grpc::ClientContext& context) {
    return endpoint.kv->Txn(&context, txn, &response);
  });
  if (!status.ok()) return status;
  return response.succeeded() ? absl::OkStatus()
                              : absl::AbortedError("another node coordinates now");
}

std::unique_ptr<grpc::ClientReaderWriter<etcdserverpb::WatchRequest, etcdserverpb::WatchResponse>>
EtcdCalls::Watch(grpc::ClientContext* context) {
  if (!access_.user.empty()) context->AddMetadata("token", Token());
  auto stream = endpoints_[current_].watch->Watch(context);
  etcdserverpb::WatchRequest request;
  request.mutable_create_request()->set_key(prefix_);
  request.mutable_create_request()->set_range_end(AfterPrefix(prefix_));
  stream->Write(request);
  return stream;
}

}  // namespace epd
