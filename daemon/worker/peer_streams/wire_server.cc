#include "daemon/worker/peer_streams/wire_server.h"

#include <chrono>
#include <cstring>
#include <functional>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/tls/proof.h"
#include "daemon/tls/wire_secret.h"
#include "daemon/worker/peer_streams/buffer_reader.h"
#include "daemon/worker/peer_streams/frame.h"
#include "daemon/worker/peer_streams/frames_in.h"
#include "daemon/worker/peer_streams/stream_loop.h"
#include "daemon/worker/peer_streams/stream_proof.h"
#include "daemon/worker/peer_streams/urgent_socket.h"
#include "proto/epd/v1/limits.h"
#include "proto/epd/v1/text.h"
#include "proto/epd/v1/wire.pb.h"
#include "proto/failpoint/failpoint.h"

namespace epd {
namespace {

constexpr int kPingStrikes = 0;  // Peers ping as often as they like.
constexpr int kPingEveryMs = 1000;
// Of a stream of messages: what a peer may send before it hears how much was read, and that no frame is to be cut. gRPC gives the
// connection, which is one stream's, a window of its own: 64 KiB, which it widens only by what it finds out with pings
// (GRPC_ARG_HTTP2_BDP_PROBE; ten a second at most). With that off, rows of more than 64 KiB wait half-way for the word that the first
// of them were read.
constexpr int kExpressWindowBytes = 8 << 20;
constexpr int kExpressFrameBytes = 1 << 20;

}  // namespace

// Where the streams of one kind come in.
struct WireServer::Door {
  grpc::AsyncGenericService service;
  grpc::ServerCompletionQueue* queue = nullptr;  // The loop's.
  std::unique_ptr<grpc::Server> server;
  std::optional<StreamLoop> loop;  // Ends first: its streams wait for further ones at the server.
};

// Deletes itself when it is over.
class WireServer::Stream {
 public:
  // Waits for the next call at `door`.
  static void Await(WireServer& server, Door& door) {
    auto* stream = new Stream(server, door);
    door.loop->Began();
    grpc::ServerCompletionQueue* queue = door.queue;
    door.service.RequestCall(&stream->context_, &stream->stream_, queue, queue, &stream->called_);
  }

 private:
  using Event = MethodEvent<Stream>;

  Stream(WireServer& server, Door& door) : server_(server), door_(door) {}

  void OnCalled(bool ok) {
    if (!ok) return OnFinished(false);
    Await(server_, door_);
    // Its acknowledgements, without which the peer's small rows stand still.
    if (door_.loop->carries() == Carries::kSmall) MarkUrgent(context_.peer());
    const grpc::Status problem = TakeCall();
    if (!problem.ok()) return End(problem);
    context_.AddInitialMetadata(kChallengeKey, challenge_);
    stream_.SendInitialMetadata(&challenged_);
  }

  void OnChallenged(bool ok) {
    if (!ok) return End(grpc::Status::OK);
    stream_.Read(&buffer_, &read_);
  }

  void OnRead(bool ok) {
    if (!ok) return End(grpc::Status::OK);
    BufferReader reader(buffer_);
    const grpc::Status problem = frames_.has_value() ? frames_->Take(reader) : TakeHello(reader);
    if (!problem.ok()) return End(problem);
    buffer_.Clear();
    stream_.Read(&buffer_, &read_);
  }

  void OnFinished(bool) {
    StreamLoop& loop = *door_.loop;
    delete this;
    loop.Over();
  }

  void End(const grpc::Status& status) {
    if (frames_.has_value()) {
      server_.Ended(this, peer_, kind_, status.error_message());
    } else if (status.error_code() == grpc::StatusCode::INVALID_ARGUMENT) {
      server_.inbox_.Put(PeerRefused{absl::InvalidArgumentError(
          absl::StrCat("a stream from ", context_.peer(), ": ", status.error_message()))});
    }
    stream_.Finish(status, &finished_);
  }

  // Who calls, and what it is to prove.
  grpc::Status TakeCall() {
    const auto& metadata = context_.client_metadata();
    const auto said = metadata.find(kHelloKey);
    v1::WireHello hello;
    if (context_.method() != kWireMethod)
      return {grpc::StatusCode::UNIMPLEMENTED, "this port is for epd's workers only"};
    if (said == metadata.end() ||
        !hello.ParseFromArray(said->second.data(), static_cast<int>(said->second.size()))) {
      return {grpc::StatusCode::FAILED_PRECONDITION,
              absl::StrCat("a call without a hello; run one version of epd on all nodes (this "
                           "worker speaks version ",
                           kWireVersion, " of the protocol between workers)")};
    }
    node_ = text::Clean(hello.node(), limits::kNameBytes);
    if (hello.version() != kWireVersion) {
      return {grpc::StatusCode::FAILED_PRECONDITION, AnotherVersion(hello.version())};
    }
    if (hello.to() != server_.self_.worker.value || hello.from() == 0) {
      return {grpc::StatusCode::UNAUTHENTICATED,
              "the stream is for another worker; that one has been replaced, or the caller is of "
              "another cluster"};
    }
    peer_ = Incarnation(hello.from());
    kind_ = hello.stream_kind();
    hello_ = std::string(said->second.data(), said->second.size());
    secret_ = SecretOfPair(server_.self_.secret, peer_, server_.self_.worker);
    challenge_ = MakeChallenge(secret_, hello_);
    return grpc::Status::OK;
  }

  // Where epd was replaced in place, workers of the release before run on.
  std::string AnotherVersion(uint32_t version) const {
    const std::string& here = server_.self_.node;
    if (node_ == here) {
      return absl::StrCat("two workers of node ", here, " speak versions ", version, " and ",
                          kWireVersion, " of the protocol between workers; restart epd there");
    }
    return absl::StrCat("node ", node_, " speaks version ", version,
                        " of the protocol between workers, node ", here, " version ", kWireVersion,
                        "; run one version of epd on all nodes");
  }

  grpc::Status TakeHello(BufferReader& reader) {
    EPD_FAILPOINT("worker.wire.greeted");
    const std::optional<uint32_t> kind = reader.Peek<uint32_t>();
    if (kind != static_cast<uint32_t>(FrameKind::kHello)) return FramesIn::BadKind(kind);
    v1::WireHello hello;
    if (!hello.ParseFromString(reader.Rest(sizeof(uint32_t)))) {
      return FramesIn::Bad("a hello that is none");
    }
    if (server_.self_.secret.empty() ||
        !SameProof(hello.proof(), ProofOfStream(secret_, hello_, challenge_))) {
      return FramesIn::Stranger(
          put_, absl::StrCat("a stream at ", context_.peer(), ", which says that it is of node ",
                             node_, ", does not know what a formation tells its workers"));
    }
    frames_.emplace(FramesIn::From{peer_, node_, server_.traffic_.Of(node_)},
                    server_.remote_regions_, put_);
    server_.Greeted(this, peer_, kind_);
    return grpc::Status::OK;
  }

  WireServer& server_;
  const std::function<void(WireEvent)> put_ = [&inbox = server_.inbox_](WireEvent event) {
    inbox.Put(std::move(event));
  };
  Door& door_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_{&context_};
  Event called_{this, &Stream::OnCalled};
  Event challenged_{this, &Stream::OnChallenged};
  Event read_{this, &Stream::OnRead};
  Event finished_{this, &Stream::OnFinished};
  grpc::ByteBuffer buffer_;
  std::string hello_;  // As the caller said it.
  std::string node_;
  std::string secret_;     // Of the caller and this worker.
  std::string challenge_;  // What the caller's proof is to be about.
  Incarnation peer_;
  uint32_t kind_ = 0;
  std::optional<FramesIn> frames_;  // Once it has said hello.
};

WireServer::WireServer(Self self, RemoteRegions& landing, Inbox& inbox, Traffic& traffic)
    : self_(std::move(self)), remote_regions_(landing), inbox_(inbox), traffic_(traffic) {}

WireServer::~WireServer() {
  for (const std::unique_ptr<Door>& door : doors_) {
    door->server->Shutdown(std::chrono::system_clock::now());
  }
}

absl::StatusOr<int> WireServer::Open(uint32_t kind, const std::string& address,
                                     const std::shared_ptr<grpc::ServerCredentials>& credentials) {
  auto door = std::make_unique<Door>();
  int port = 0;
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(int{kMaxBufferBytes});
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, kPingStrikes);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kPingEveryMs);
  if (kind == kExpressStream) {
    builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kExpressWindowBytes);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kExpressFrameBytes);
  }
  builder.AddListeningPort(address, credentials, &port);
  builder.RegisterAsyncGenericService(&door->service);
  std::unique_ptr<grpc::ServerCompletionQueue> queue = builder.AddCompletionQueue();
  door->queue = queue.get();
  door->server = builder.BuildAndStart();
  const bool bulk = kind == kBulkStream;
  door->loop.emplace(bulk ? Carries::kBulk : Carries::kSmall, bulk ? "wire-in-bulk" : "wire-in",
                     std::move(queue));
  if (door->server == nullptr || port == 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot take streams of other nodes on '", address, "' (",
                     bulk ? "large rows come in at the port behind wire_listen's" : "wire_listen",
                     "): it is not free, or not an address of this machine; give wire_listen a "
                     "port that is free "
                     "and whose next one is, too, or port 0"));
  }
  if (absl::Status started = door->loop->Start(); !started.ok()) {
    door->server->Shutdown(std::chrono::system_clock::now());
    return started;
  }
  Stream::Await(*this, *door);
  doors_.push_back(std::move(door));
  return port;
}

absl::StatusOr<std::string> WireServer::Start(
    const std::string& listen, const std::shared_ptr<grpc::ServerCredentials>& credentials) {
  const absl::StatusOr<int> express = Open(kExpressStream, listen, credentials);
  if (!express.ok()) return express.status();
  const std::string host = listen.substr(0, listen.rfind(':'));
  const bool any = listen.substr(host.size()) == ":0";
  const absl::StatusOr<int> bulk =
      Open(kBulkStream, absl::StrCat(host, ":", any ? 0 : *express + 1), credentials);
  if (!bulk.ok()) return bulk.status();
  return absl::StrCat(host, ":", *express, ",", *bulk);
}

void WireServer::Greeted(Stream* stream, Incarnation peer, uint32_t kind) {
  const std::lock_guard lock(mutex_);
  streams_[{peer, kind}] = stream;
}

void WireServer::Ended(Stream* stream, Incarnation peer, uint32_t kind, const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = streams_.find({peer, kind});
    if (found == streams_.end() || found->second != stream) return;
    streams_.erase(found);
  }
  inbox_.Put(PeerGone{
      peer, absl::UnavailableError(why.empty() ? "its stream to this node has ended"
                                               : absl::StrCat("its stream was refused: ", why))});
}

}  // namespace epd
