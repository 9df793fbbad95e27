// A worker in the test's own process: real slots and the real engine; rows are moved by the test.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "daemon/backend/move_job.h"

namespace epd {

// Serves sessions 1, 2, ..., each with one rank of one group. Thread-safe.
class StreamWorker {
 public:
  struct Sizes {
    uint64_t device_bytes = 0;  // Of all arenas; their regions begin at 0.
    uint64_t group_id = 0;
    uint32_t num_experts = 0;
    uint32_t max_tokens = 0;
    uint32_t recv_capacity = 0;
    uint32_t hidden = 0;
    uint32_t top_k = 0;
    bool ranks_move = false;  // The client executor: the mover is asked for nothing.
    bool drop_on_overflow = false;
  };
  using Mover = std::function<absl::Status(const MoveJob&)>;

  // `slots`: descriptors of the sessions' segments.
  StreamWorker(std::vector<int> slots, Sizes sizes, Mover mover);
  ~StreamWorker();

  void Start();
  void StartTenant(uint64_t formation);
  void Stop();
  // Dies; what is open is answered ABORTED, and a new one begins, without a tenant.
  void Replace();

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace epd
