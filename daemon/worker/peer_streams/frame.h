// The buffers on a stream between two workers. Little endian, like the machines that run this.
#pragma once

#include <cstddef>
#include <cstdint>

#include "daemon/core/ids.h"

namespace epd {

inline constexpr uint32_t kWireVersion = 8;
inline constexpr const char* kWireMethod = "/epd.v1.Wire/Stream";

// Of a hello.
inline constexpr uint32_t kExpressStream = 1;
inline constexpr uint32_t kBulkStream = 2;

enum class FrameKind : uint32_t {
  kHello = 1,    // Then a WireHello with the proof alone; stream_proof.h.
  kMessage = 2,  // Then a WireMessage.
  kRows = 3,     // Then the rest of RowsFrame, RowsPiece[num_pieces] and the pieces' bytes.
  // Then the rest of RowsAheadFrame, a WireRowsAhead with a message of step kRows, and the pieces' bytes.
  kRowsAhead = 4,
  kSeveral = 5,  // Then buffers of the other kinds, each behind its size, 32 bits.
};

// Some of the rows of one rank. All of an operation's frames for a rank come on one stream.
struct RowsFrame {
  uint32_t kind = static_cast<uint32_t>(FrameKind::kRows);
  uint32_t rank = 0;
  uint64_t group = 0;
  uint64_t formation = 0;
  uint64_t number = 0;
  uint64_t total = 0;  // Bytes of all pieces in all frames of this rank.
  uint32_t num_pieces = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(RowsFrame) == 48);

// The rows of one rank ahead of an announce.
struct RowsAheadFrame {
  uint32_t kind = static_cast<uint32_t>(FrameKind::kRowsAhead);
  uint32_t head_bytes = 0;  // Of the WireRowsAhead.
};
static_assert(sizeof(RowsAheadFrame) == 8);

struct RowsPiece {
  uint64_t offset = 0;  // From the start of the region, or of the eager buffer.
  uint64_t bytes = 0;
};

// Bytes of rows in one frame: small against what a stream carries in the time of a small operation,
// large against what a frame costs.
inline constexpr uint64_t kFrameBytes = 256 << 10;
// A stage up to this size goes on the express stream.
inline constexpr uint64_t kExpressBytes = 64 << 10;
// The most that is taken of one buffer, or of one message within a node.
inline constexpr uint32_t kMaxBufferBytes = 16 << 20;
// Messages that wait go together, up to this size.
inline constexpr uint64_t kSeveralBytes = 1 << 20;

}  // namespace epd
