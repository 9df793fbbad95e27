// What comes on one stream from another worker, once it is believed: messages for the exec thread, and rows that land.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "daemon/worker/peer_streams/buffer_reader.h"
#include "daemon/worker/peer_streams/inbox.h"
#include "daemon/worker/peer_streams/peer_message_codec.h"
#include "daemon/worker/peer_streams/remote_regions.h"
#include "daemon/worker/peer_streams/traffic.h"

namespace epd {

// Used by one thread at a time.
class FramesIn {
 public:
  struct From {
    Incarnation peer;
    std::string node;  // As the peer says.
    std::shared_ptr<NodeTraffic> traffic;
  };
  // `landing` outlives this.
  FramesIn(From from, RemoteRegions& landing, std::function<void(WireEvent)> put)
      : from_(std::move(from)), remote_regions_(landing), put_(std::move(put)) {}

  // The next buffer of the stream. Not OK: the stream is to end with it.
  //   INVALID_ARGUMENT  it says nothing that has a place here
  //   UNAUTHENTICATED   rows of a rank that another worker serves; told as PeerRefused, too
  grpc::Status Take(BufferReader& reader);
  // The same of a stream on which no buffer has several.
  grpc::Status TakeOne(BufferReader& reader);

  static grpc::Status Bad(const std::string& what) {
    return {grpc::StatusCode::INVALID_ARGUMENT, "got " + what};
  }
  // Of a buffer of a kind that is not asked for; nothing: it is empty.
  static grpc::Status BadKind(std::optional<uint32_t> kind);
  // Nobody whom a formation names: one line in the log, and the end.
  static grpc::Status Stranger(const std::function<void(WireEvent)>& put, const std::string& what);

 private:
  grpc::Status TakeSeveral(BufferReader& reader);
  grpc::Status TakeMessage(BufferReader& reader);
  grpc::Status TakeRowsAhead(BufferReader& reader);
  grpc::Status TakeRows(BufferReader& reader);

  const From from_;
  RemoteRegions& remote_regions_;
  const std::function<void(WireEvent)> put_;
  LastSubject heard_;  // Last.
};

}  // namespace epd
