#include "daemon/worker/peer_streams/wire.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "daemon/tls/proof.h"
#include "daemon/worker/peer_streams/frame.h"
#include "daemon/worker/peer_streams/stream_proof.h"
#include "proto/epd/v1/wire.pb.h"
#include "proto/failpoint/failpoint.h"

namespace epd {
namespace {

constexpr int kConnectMs = 5000;
// A node that is cut off is noticed within the sum.
constexpr int kPingEveryMs = 5000;
constexpr int kPingAnswerMs = 5000;
// For peers to hear the last words. Of one that does not answer nothing more is awaited.
constexpr std::chrono::milliseconds kLastWords(500);

template <typename Proto>
grpc::ByteBuffer Framed(FrameKind kind, const Proto& proto) {
  std::string bytes(sizeof kind, '\0');
  std::memcpy(bytes.data(), &kind, sizeof kind);
  proto.AppendToString(&bytes);
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

grpc::ChannelArguments ArgumentsOf(uint32_t kind) {
  grpc::ChannelArguments arguments;
  arguments.SetInt("epd.stream_kind", static_cast<int>(kind));  // A connection of its own.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingEveryMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingAnswerMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  return arguments;
}

std::string HostOf(const std::string& address) { return address.substr(0, address.rfind(':')); }

// Of the stream's port, from host:express,bulk.
std::string AddressOf(const std::string& address, uint32_t kind) {
  const size_t comma = address.rfind(',');
  if (comma == std::string::npos) return address;
  if (kind == kExpressStream) return address.substr(0, comma);
  return absl::StrCat(HostOf(address), ":", address.substr(comma + 1));
}

}  // namespace

Wire::Wire(Options options)
    : options_(std::move(options)),
      credentials_(MakeChannelCredentials(options_.tls, TellRefused())),
      node_streams_(options_.node, options_.self, remote_regions_, *traffic_),
      express_loop_(Carries::kSmall, "wire-out", std::make_unique<grpc::CompletionQueue>()),
      bulk_loop_(Carries::kBulk, "wire-out-bulk", std::make_unique<grpc::CompletionQueue>()),
      server_({options_.node, options_.self, options_.secret}, remote_regions_, *inbox_, *traffic_),
      has_threads_(StartThreads()) {}

Wire::~Wire() {
  for (auto& [unused, gate] : gates_) gate->Shut();
  // The last words say why: a peer has them before it sees any stream end.
  for (auto& [unused, peer] : peers_) {
    if (peer.express != nullptr) peer.express->Close();
  }
  node_streams_.Await(kLastWords);
  express_loop_.Await(kLastWords);
  for (auto& [unused, peer] : peers_) {
    if (peer.express != nullptr) peer.express->Cancel();
    peer.bulk->Cancel();
  }
  peers_.clear();
}

OnRefusedPeer Wire::TellRefused() const {
  return [inbox = inbox_](const absl::Status& why) { inbox->Put(PeerRefused{why}); };
}

absl::Status Wire::StartThreads() {
  absl::Status started = express_loop_.Start();
  if (started.ok()) started = bulk_loop_.Start();
  if (!started.ok()) return started;
  static constexpr char kName[] = "wire-cut";  // The thread reads it.
  const int error = task_thread_.Start(kName);
  return error == 0 ? started : absl::ResourceExhaustedError(WhyNoThread(kName, error));
}

absl::StatusOr<std::string> Wire::Listen(const std::string& listen, const std::string& advertise) {
  if (!has_threads_.ok()) return has_threads_;
  absl::StatusOr<std::string> bound =
      server_.Start(listen, MakeServerCredentials(options_.tls, TellRefused()));
  if (!bound.ok() || advertise.empty()) return bound;
  return absl::StrCat(advertise, bound->substr(HostOf(*bound).size()));
}

std::shared_ptr<PeerStream> Wire::Connect(const PeerWorker& node, uint32_t kind) {
  v1::WireHello hello;
  hello.set_version(kWireVersion + (EPD_FAILPOINT_FAILS("worker.wire.version_gap") ? 1 : 0));
  hello.set_node(options_.node);
  hello.set_from(options_.self.value);
  hello.set_to(node.worker.value);
  hello.set_stream_kind(kind);
  hello.set_nonce(RandomBytes(kProofBytes));
  const std::string address = AddressOf(node.address, kind);
  PeerStreamObserver observer;
  observer.lost = [inbox = inbox_, node, address](const absl::Status& why) {
    inbox->Put(PeerGone{node.worker, absl::UnavailableError(
                                         absl::StrCat("the stream to ", ToString(node.id()), " at ",
                                                      address, " is lost: ", why.message()))});
  };
  observer.refused = [inbox = inbox_](const OutgoingRows& rows, const absl::Status& cause) {
    inbox->Put(StageRefused{rows.operation(), rows.rank(), cause});
  };
  observer.traffic = traffic_->Of(node.name.value);
  const auto channel = grpc::CreateCustomChannel(address, credentials_, ArgumentsOf(kind));
  StreamHello begin{.hello = hello.SerializeAsString(), .prove = nullptr};
  begin.prove = [secret = node.secret, said = begin.hello](
                    const std::string& challenge) -> absl::StatusOr<grpc::ByteBuffer> {
    if (!IsChallenge(secret, said, challenge)) {
      return absl::UnauthenticatedError(
          "whoever answers there does not know what the formation told both workers");
    }
    EPD_FAILPOINT("worker.wire.prove");
    v1::WireHello proof;
    proof.set_proof(ProofOfStream(secret, said, challenge));
    return Framed(FrameKind::kHello, proof);
  };
  return PeerStream::Start(kind == kBulkStream ? bulk_loop_ : express_loop_, channel,
                           std::move(begin), std::move(observer));
}

void Wire::Meet(const std::vector<PeerWorker>& nodes) {
  for (const PeerWorker& node : nodes) {
    if (node.worker == options_.self || node.address.empty() || peers_.contains(node.worker)) {
      continue;
    }
    Peer peer;
    peer.traffic = traffic_->Of(node.name.value);
    if (options_.passes_ends && node.name.value == options_.node) {
      node_streams_.Meet(node.worker);
    } else {
      peer.express = Connect(node, kExpressStream);
    }
    peer.bulk = Connect(node, kBulkStream);
    peers_[node.worker] = std::move(peer);
  }
}

void Wire::Send(Incarnation peer, const PeerMessage& message) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return;  // Its loss has been told.
  EPD_FAILPOINT_SEND(
      "worker.wire.message",
      Post(peer, found->second, Framed(FrameKind::kMessage, ToProto(message, found->second.said))));
}

void Wire::Post(Incarnation id, Peer& peer, const grpc::ByteBuffer& message) {
  if (peer.express == nullptr) {
    node_streams_.Enqueue(id, message);
  } else {
    peer.express->Enqueue(message);
  }
  if (!corked_) return Flush(id, peer);
  if (unflushed_.empty() || unflushed_.back() != id) unflushed_.push_back(id);
}

void Wire::Flush(Incarnation id, Peer& peer) {
  if (peer.express == nullptr) return node_streams_.Flush(id);
  peer.express->Flush();
}

void Wire::Flush() {
  for (const Incarnation id : unflushed_) {
    const auto found = peers_.find(id);
    if (found != peers_.end()) Flush(id, found->second);
  }
  unflushed_.clear();
}

// What was said before a stream ended is taken before its end is: the inbox, which may have the end of another stream of the
// same peer, is looked at first and stands last.
std::vector<WireEvent> Wire::Take() {
  std::vector<WireEvent> ends = inbox_->Take();
  std::vector<WireEvent> events = node_streams_.Take();
  for (const WireEvent& end : ends) {
    const auto* gone = std::get_if<PeerGone>(&end);
    if (gone == nullptr) continue;
    std::vector<WireEvent> last = node_streams_.TakeLast(gone->peer);
    std::move(last.begin(), last.end(), std::back_inserter(events));
  }
  std::move(ends.begin(), ends.end(), std::back_inserter(events));
  return events;
}

absl::Status Wire::SendAhead(Incarnation peer, const PeerMessage& message, const StageToSend& stage,
                             const std::vector<Rank>& destinations) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return absl::OkStatus();  // Its loss has been told.
  PublishedStage published = stage.stage;
  if (!stage.expert_owner.empty()) published.spec.expert_owner = stage.expert_owner.data();
  LastSubject said = found->second.said;
  const absl::StatusOr<grpc::ByteBuffer> buffer =
      FrameRowsAhead(message, published, destinations, said);
  if (!buffer.ok()) return buffer.status();
  const auto send = [&, &to = found->second] {
    to.said = said;
    to.traffic->sent_bytes.fetch_add(buffer->Length(), std::memory_order_relaxed);
    Post(peer, to, *buffer);
  };
  EPD_FAILPOINT_SEND("worker.wire.ahead", send());
  return absl::OkStatus();
}

void Wire::Land(const RowsName& name, char* eager_buffer) {
  const auto found = held_rows_.find(name);
  if (found == held_rows_.end()) return;
  found->second.Land(eager_buffer);
  held_rows_.erase(found);
}

void Wire::Send(RowsToSend rows) {
  std::shared_ptr<StageGate>& gate = gates_[rows.operation];
  if (gate == nullptr) gate = std::make_shared<StageGate>();
  for (auto& [node, ranks] : rows.destinations) {
    const auto peer = peers_.find(node);
    if (peer == peers_.end()) continue;
    auto outgoing = std::make_shared<OutgoingRows>(rows.operation, rows.stage, rows.expert_owner,
                                                   std::move(ranks), gate);
    const auto send = [&, &to = peer->second] {
      const bool small = rows.stage.said.stage_bytes <= kExpressBytes;
      if (small && to.express != nullptr) return to.express->Send(outgoing);
      task_thread_.Post([stream = to.bulk, outgoing] { stream->Send(outgoing); });
    };
    EPD_FAILPOINT_SEND("worker.wire.rows", send());
  }
}

void Wire::Open(const PeerOperation& operation, uint64_t bytes,
                std::map<Rank, RemoteRegion> regions) {
  remote_regions_.Open(operation, bytes, std::move(regions));
}

void Wire::Close(const PeerOperation& operation) {
  remote_regions_.Close(operation);
  const auto gate = gates_.find(operation);
  if (gate == gates_.end()) return;
  gate->second->Shut();
  gates_.erase(gate);
}

void Wire::Forget(Incarnation peer) {
  node_streams_.Forget(peer);
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return;
  if (found->second.express != nullptr) found->second.express->Cancel();
  found->second.bulk->Cancel();
  peers_.erase(found);
}

}  // namespace epd
