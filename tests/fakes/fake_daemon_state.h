// What the fake daemon keeps per session, group and operation; shared by its two sources.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "tests/fakes/fake_daemon.h"

namespace epd::fakes {

inline constexpr uint64_t kArenaBytes = uint64_t{64} << 20;

struct FakeDaemon::Session {
  int fd = -1;
  int slots_fd = -1;
  int event_fd = -1;
  uint64_t id = 0;
  shm::SlotsSegment* segment = nullptr;
  std::array<uint32_t, shm::kSlotsPerSession> last_claim{};
};

struct FakeDaemon::Group {
  struct Member {
    Session* session = nullptr;
    uint64_t request_id = 0;
    int arena_fd = -1;
    bool drained = false;
  };
  v1::GroupSpec spec;
  uint64_t id = 0;
  uint64_t formation = 1;
  bool reforming = false;
  std::vector<Member> members;  // By rank.
  std::vector<v1::Drained> last_drained;
};

struct FakeDaemon::Operation {
  struct Rank {
    Session* session = nullptr;
    int slot = -1;  // Of the open use; -1: none.
    bool announced = false;
    bool published = false;
    bool pulled = false;
  };
  uint64_t op_id = 0;
  std::string key;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint32_t error_code = 0;
  std::string error;
  std::vector<Rank> ranks;
};

}  // namespace epd::fakes
