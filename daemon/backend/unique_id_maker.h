// Makes NCCL unique ids beside the exec thread, each with a deadline.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/core/unique_fd.h"

namespace epd {

struct UniqueIdRequest {
  uint64_t group_id = 0;
  uint64_t epoch = 0;
};

struct MadeUniqueId {
  UniqueIdRequest request;
  absl::Status status;
  std::string unique_id;  // Secret; empty unless the status is OK.
};

// Each request runs on its own thread, because making an id may hang in the network's set-up. What
// comes after its deadline is dropped. All members but the making itself belong to the caller's
// thread.
class UniqueIdMaker {
 public:
  using Make = std::function<absl::StatusOr<std::string>()>;
  static constexpr absl::Duration kLimit = absl::Seconds(20);

  // `make` may outlive this, on its thread.
  explicit UniqueIdMaker(Make make, absl::Duration limit = kLimit);

  //   RESOURCE_EXHAUSTED  descriptors
  absl::Status Start();
  // Readable when TakeMade has something new that was not late.
  int ready_fd() const;

  void Request(const UniqueIdRequest& request, absl::Time now);
  // What is done, and DEADLINE_EXCEEDED for what is late.
  std::vector<MadeUniqueId> TakeMade(absl::Time now);
  absl::Time next_deadline() const;

 private:
  struct Pending {
    UniqueIdRequest request;
    absl::Time deadline;
  };
  // Shared with the threads, which may outlive the maker.
  struct Results {
    absl::Mutex mutex;
    std::map<uint64_t, absl::StatusOr<std::string>> done ABSL_GUARDED_BY(mutex);
    UniqueFd ready;
  };

  const Make make_;
  const absl::Duration limit_;
  std::shared_ptr<Results> results_ = std::make_shared<Results>();
  std::map<uint64_t, Pending> pending_;  // By number of the request.
  uint64_t next_ = 1;
};

}  // namespace epd
