// The messages of the attach socket as plain structs; proto/epd/v1/attach.proto says what each
// field means.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "client/c/status.h"
#include "proto/epd/v1/limits.h"

namespace epd::client {

inline constexpr uint32_t kMinAttachVersion = 1;

// Durations are nanoseconds; 0 is "not set", since no wait of zero is of use.
struct Deadlines {
  int64_t warn_after_ns = 0;
  int64_t absent_ns = 0;
  int64_t undecided_ns = 0;
  int64_t form_ns = 0;
  bool operator==(const Deadlines&) const = default;
};

enum class Executor : int32_t { kUnspecified = 0, kClient = 1, kWorker = 2 };

struct GroupSpec {
  std::string name;
  std::string instance;
  std::string tenant;
  uint32_t num_ranks = 0;
  uint32_t num_experts = 0;
  std::vector<uint32_t> expert_owner;
  uint32_t max_tokens_per_rank = 0;
  uint32_t recv_capacity_per_rank = 0;
  uint32_t hidden = 0;
  uint32_t top_k = 0;
  int32_t max_token_dtype = 0;
  bool drop_on_overflow = false;
  Executor executor = Executor::kUnspecified;
  std::string backend;
  Deadlines deadlines;
  // Its staging is memory of GPUs.
  bool on_device() const { return backend == "cuda" || backend == "nccl_ep"; }
  bool operator==(const GroupSpec&) const = default;
};

// Of Attach::features.
inline constexpr uint64_t kTakesSlotsOfFurtherWorkers = 1;

struct Attach {
  uint32_t min_version = kMinAttachVersion;
  uint32_t max_version = limits::kProtocolVersion;
  uint64_t features = 0;
  std::string client_name;
  std::string client_version;
};

struct Join {
  uint64_t request_id = 0;
  GroupSpec spec;
  std::vector<uint32_t> ranks;
  std::vector<std::string> devices;
  uint64_t min_epoch = 0;
  int64_t deadline_ns = 0;
  std::string program;
  std::string metadata;
};

struct Leave {
  uint64_t request_id = 0;
  uint64_t group_id = 0;
};

struct Drained {
  struct Count {
    uint32_t rank = 0;
    std::string program;  // 16 bytes.
    uint64_t begun = 0;
    bool operator==(const Count&) const = default;
  };
  uint64_t group_id = 0;
  uint64_t formation = 0;
  std::vector<Count> counts;
};

using ClientMessage = std::variant<Attach, Join, Leave, Drained>;

struct Attached {
  uint32_t version = 0;
  uint64_t features = 0;
  uint64_t session_id = 0;
  uint64_t incarnation = 0;
  std::string node;
  std::string daemon_version;
  uint32_t daemon_pid = 0;
};

// How an arena is mapped; ArenaSharing of attach.proto.
enum class ArenaSharing : uint32_t { kMemfd = 0, kDeviceDescriptor = 1, kDeviceHandle = 2 };

struct Joined {
  struct Arena {
    uint32_t rank = 0;
    uint64_t bytes = 0;
    bool own = false;
    ArenaSharing sharing = ArenaSharing::kMemfd;
    std::string handle;       // kDeviceHandle: 64 bytes, and no descriptor.
    std::string device_uuid;  // Of device memory.
  };
  struct Member {
    uint32_t rank = 0;
    std::string node;
    std::string host;
    int32_t pid = 0;
    std::string client_name;
    uint64_t session_id = 0;
    std::string worker;  // Empty: "cpu".
  };
  struct Slots {
    std::string worker;
  };
  uint64_t request_id = 0;
  uint64_t group_id = 0;
  uint64_t epoch = 0;
  uint64_t formation = 0;
  std::vector<Arena> arenas;
  std::vector<Member> members;
  GroupSpec spec;
  uint64_t stream_region_offset = 0;
  uint64_t stream_region_bytes = 0;
  std::vector<Slots> slots;
};

struct JoinFailed {
  uint64_t request_id = 0;
  Status status;
};

struct Left {
  uint64_t request_id = 0;
  Status status;
};

struct Reform {
  uint64_t group_id = 0;
  uint64_t formation = 0;
  Status cause;
  bool wait = false;
};

struct GroupEnded {
  uint64_t group_id = 0;
  Status status;
};

struct Goodbye {
  Status status;
};

// A message of a newer daemon that this library does not know; it is skipped.
struct UnknownMessage {};

using ServerMessage =
    std::variant<UnknownMessage, Attached, Joined, JoinFailed, Left, Reform, GroupEnded, Goodbye>;

}  // namespace epd::client
