#include "daemon/worker/peer_streams/wire_server.h"

#include <chrono>
#include <cstring>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/tls/proof.h"
#include "daemon/tls/wire_secret.h"
#include "daemon/worker/peer_streams/buffer_reader.h"
#include "daemon/worker/peer_streams/held_rows.h"
#include "daemon/worker/peer_streams/peer_message_codec.h"
#include "daemon/worker/peer_streams/stream_loop.h"
#include "daemon/worker/peer_streams/stream_proof.h"
#include "daemon/worker/peer_streams/urgent_socket.h"
#include "proto/epd/v1/limits.h"
#include "proto/epd/v1/text.h"
#include "proto/epd/v1/wire.pb.h"
#include "proto/failpoint/failpoint.h"

namespace epd {
namespace {

constexpr int kMaxFrameBytes = 16 << 20;
constexpr int kPingStrikes = 0;  // Peers ping as often as they like.
constexpr int kPingEveryMs = 1000;
// Of a stream of messages: what a peer may send before it hears how much was read, and that no frame is to be cut. gRPC gives the
// connection, which is one stream's, a window of its own: 64 KiB, which it widens only by what it finds out with pings
// (GRPC_ARG_HTTP2_BDP_PROBE; ten a second at most). With that off, rows of more than 64 KiB wait half-way for the word that the first
// of them were read.
constexpr int kExpressWindowBytes = 8 << 20;
constexpr int kExpressFrameBytes = 1 << 20;

// A frame's pieces never need more.
constexpr uint32_t kMaxPieces = 1 << 16;

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
    const bool several = greeted_ && reader.Peek<uint32_t>() == KindOf(FrameKind::kSeveral);
    const grpc::Status problem = several ? TakeSeveral(reader) : Take(reader);
    if (!problem.ok()) return End(problem);
    buffer_.Clear();
    stream_.Read(&buffer_, &read_);
  }

  static constexpr uint32_t KindOf(FrameKind kind) { return static_cast<uint32_t>(kind); }

  grpc::Status Take(BufferReader& reader) {
    const std::optional<uint32_t> kind = reader.Peek<uint32_t>();
    if (!kind.has_value()) return Bad("an empty buffer");
    if (*kind == KindOf(FrameKind::kRows) && greeted_) return TakeRows(reader);
    if (*kind == KindOf(FrameKind::kRowsAhead) && greeted_) return TakeRowsAhead(reader);
    if (*kind == KindOf(FrameKind::kMessage) && greeted_) return TakeMessage(reader);
    if (*kind == KindOf(FrameKind::kHello) && !greeted_) return TakeHello(reader);
    return Bad(absl::StrCat("a buffer of kind ", *kind, " that has no place here"));
  }

  grpc::Status TakeSeveral(BufferReader& reader) {
    uint32_t bytes = 0;
    reader.Read(&bytes, sizeof bytes);  // The kind.
    while (reader.left() > 0) {
      std::optional<BufferReader> one;
      if (reader.Read(&bytes, sizeof bytes)) one = reader.Split(bytes);
      if (!one.has_value()) return Bad("several buffers, of which the last one is cut");
      if (const grpc::Status problem = Take(*one); !problem.ok()) return problem;
    }
    return grpc::Status::OK;
  }

  void OnFinished(bool) {
    StreamLoop& loop = *door_.loop;
    delete this;
    loop.Over();
  }

  static grpc::Status Bad(const std::string& what) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "got " + what);
  }

  void End(const grpc::Status& status) {
    if (greeted_) {
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
      return {grpc::StatusCode::FAILED_PRECONDITION,
              absl::StrCat("node ", node_, " speaks version ", hello.version(),
                           " of the protocol between workers, this node ", kWireVersion,
                           "; run one version of epd on all nodes")};
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

  grpc::Status TakeHello(BufferReader& reader) {
    EPD_FAILPOINT("worker.wire.greeted");
    v1::WireHello hello;
    if (!hello.ParseFromString(reader.Rest(sizeof(uint32_t)))) return Bad("a hello that is none");
    if (server_.self_.secret.empty() ||
        !SameProof(hello.proof(), ProofOfStream(secret_, hello_, challenge_))) {
      return Stranger(absl::StrCat("a stream at ", context_.peer(),
                                   ", which says that it is of node ", node_,
                                   ", does not know what a formation tells its workers"));
    }
    traffic_ = server_.traffic_.Of(node_);
    greeted_ = true;
    server_.Greeted(this, peer_, kind_);
    return grpc::Status::OK;
  }

  // Nobody whom a formation names: one line in the log, and the end.
  grpc::Status Stranger(const std::string& what) {
    server_.inbox_.Put(PeerRefused{absl::UnauthenticatedError(what)});
    return {grpc::StatusCode::UNAUTHENTICATED, what};
  }

  grpc::Status TakeMessage(BufferReader& reader) {
    v1::WireMessage proto;
    std::string bytes = reader.Rest(sizeof(uint32_t));
    EPD_FAILPOINT_FLIP("worker.wire.bytes", bytes.data(), bytes.size());
    if (!proto.ParseFromString(bytes)) return Bad("no message");
    std::optional<PeerMessage> message = FromProto(proto, heard_);
    if (!message.has_value() || message->step == LeaderStep::kRows) {
      return Bad(absl::StrCat("a message of step ", proto.step()));
    }
    server_.inbox_.Put(PeerSaid{peer_, *std::move(message)});
    return grpc::Status::OK;
  }

  grpc::Status TakeRowsAhead(BufferReader& reader) {
    traffic_->received_bytes.fetch_add(reader.left(), std::memory_order_relaxed);
    std::optional<RowsMessage> read = ReadRowsAhead(reader, heard_);
    if (!read.has_value()) return Bad("rows ahead of an announce that are none");
    server_.inbox_.Put(PeerSaid{peer_, std::move(read->message), std::move(read->rows)});
    return grpc::Status::OK;
  }

  grpc::Status TakeRows(BufferReader& reader) {
    traffic_->received_bytes.fetch_add(reader.left(), std::memory_order_relaxed);
    RowsFrame frame;
    if (!reader.Read(&frame, sizeof frame) || frame.num_pieces > kMaxPieces) return Bad("no rows");
    std::vector<RowsPiece> pieces(frame.num_pieces);
    if (!reader.Read(pieces.data(), pieces.size() * sizeof(RowsPiece))) return Bad("no pieces");
    switch (server_.remote_regions_.Land(peer_, frame, pieces, reader.Parts())) {
      case RemoteRegions::Outcome::kBad:
        return Bad(absl::StrCat("rows of rank ", frame.rank, " outside of their region"));
      case RemoteRegions::Outcome::kForeign:
        return Stranger(absl::StrCat("node ", node_, " sends rows of rank ", frame.rank,
                                     ", which another worker serves"));
      case RemoteRegions::Outcome::kComplete:
        server_.inbox_.Put(RowsCame{
            {GroupId(frame.group), Formation(frame.formation), frame.number}, Rank(frame.rank)});
        return grpc::Status::OK;
      case RemoteRegions::Outcome::kMore:
      case RemoteRegions::Outcome::kDropped:
        return grpc::Status::OK;
    }
    return grpc::Status::OK;
  }

  WireServer& server_;
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
  bool greeted_ = false;
  Incarnation peer_;
  uint32_t kind_ = 0;
  std::shared_ptr<NodeTraffic> traffic_;  // Once greeted.
  LastSubject heard_;                     // Last.
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
  builder.SetMaxReceiveMessageSize(kMaxFrameBytes);
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
