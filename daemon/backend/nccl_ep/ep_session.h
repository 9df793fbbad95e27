// One member's group in NCCL EP: every call into the library stands here, all on one thread, which may block
// and which the library may take down with its process.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/backend/cuda/members/library_call.h"
#include "daemon/backend/cuda/members/nccl_table.h"
#include "daemon/backend/member_moves.h"
#include "daemon/backend/nccl_ep/nccl_ep_table.h"
#include "kernels/cuda/driver/driver_table.h"

namespace epd::nccl_ep {

// Receive slots of the library's group: no fewer than tokens, and whole zones of any alignment, so that it
// never has an overflow to act upon.
uint32_t LibrarySlots(const GroupSpec& group);

// Memory for the exchange that compiles all kernels: one token of each rank.
struct WarmUpRoom {
  uint64_t topk = 0;  // Offsets.
  uint64_t rows = 0;
  uint64_t weights = 0;
  uint64_t zones = 0;
  uint64_t total = 0;
  uint64_t landing = 0;
  uint64_t landing_weights = 0;
  uint64_t bytes = 0;
};
WarmUpRoom WarmUpRoomOf(const GroupSpec& group, int num_ranks);

struct SessionOptions {
  const cuda::DriverTable* driver = nullptr;
  cuda::Context context = nullptr;
  const cuda::NcclTable* nccl = nullptr;
  const Table* library = nullptr;
  cuda::NcclComm parent = nullptr;  // Ready, with the members.
  int num_ranks = 0;
  int rank = 0;
  GroupSpec group;
  cuda::Stream stream = nullptr;
  cuda::DevicePointer room = 0;  // [WarmUpRoom::bytes]; its topk has been set.
  absl::Duration timeout;        // Of the library's kernels for each other.
  absl::Duration form_limit;
};

class EpSession {
 public:
  explicit EpSession(const SessionOptions& options) : options_(options) {}

  // Makes the communicator and the group and puts one exchange of each kind into the stream, by the first handle, which has
  // the library compile its kernels. Blocks until every member does the same.
  absl::Status Enter();
  // Puts one operation into the stream, behind its routes where they are told.
  absl::Status Run(const cuda::LibraryCall& call);
  // Gives everything back. The stream must be through.
  absl::Status Leave();

 private:
  // By alignment and top_k, which a handle keeps, and LibraryCall::handle.
  using Handles = std::map<std::tuple<int64_t, int32_t, int>, Handle>;

  absl::Status UseContext() const;
  absl::Status Split();
  absl::Status CreateGroup();
  absl::Status WarmUp();
  absl::StatusOr<Handle> HandleFor(const cuda::LibraryCall& call);
  absl::Status Update(Handle handle, const cuda::LibraryCall& call) const;
  absl::Status Dispatch(Handle handle, const cuda::LibraryCall& call) const;
  absl::Status Combine(Handle handle, const cuda::LibraryCall& call) const;

  const SessionOptions options_;
  cuda::NcclComm comm_ = nullptr;
  Group group_ = nullptr;
  Handles handles_;
};

}  // namespace epd::nccl_ep
