#include "daemon/backend/unique_id_maker.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/machine/thread.h"

namespace epd {

UniqueIdMaker::UniqueIdMaker(Make make, absl::Duration limit)
    : make_(std::move(make)), limit_(limit) {}

absl::Status UniqueIdMaker::Start() {
  results_->ready = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (results_->ready.valid()) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("eventfd: ", std::strerror(errno)));
}

int UniqueIdMaker::ready_fd() const { return results_->ready.get(); }

void UniqueIdMaker::Request(const UniqueIdRequest& request, absl::Time now) {
  const uint64_t number = next_++;
  pending_[number] = Pending{.request = request, .deadline = now + limit_};
  const auto finish = [results = results_, number](absl::StatusOr<std::string> made) {
    {
      absl::MutexLock lock(&results->mutex);
      results->done.insert_or_assign(number, std::move(made));
    }
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(results->ready.get(), &one, sizeof one);
  };
  const int error = StartDetached({"epd-unique-id"}, [make = make_, finish] { finish(make()); });
  if (error != 0) finish(absl::ResourceExhaustedError(WhyNoThread("epd-unique-id", error)));
}

std::vector<MadeUniqueId> UniqueIdMaker::TakeMade(absl::Time now) {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(results_->ready.get(), &count, sizeof count);
  std::map<uint64_t, absl::StatusOr<std::string>> done;
  {
    absl::MutexLock lock(&results_->mutex);
    done.swap(results_->done);
  }
  std::vector<MadeUniqueId> made;
  for (auto& [number, result] : done) {
    const auto pending = pending_.find(number);
    if (pending == pending_.end()) continue;  // Late: the answer is given.
    made.push_back({.request = pending->second.request,
                    .status = result.status(),
                    .unique_id = result.ok() ? *std::move(result) : std::string()});
    pending_.erase(pending);
  }
  for (auto it = pending_.begin(); it != pending_.end();) {
    if (it->second.deadline > now) {
      ++it;
      continue;
    }
    made.push_back({.request = it->second.request,
                    .status = absl::DeadlineExceededError(absl::StrCat(
                        "ncclGetUniqueId took longer than ", absl::FormatDuration(limit_),
                        "; check the network that NCCL_SOCKET_IFNAME names")),
                    .unique_id = {}});
    it = pending_.erase(it);
  }
  return made;
}

absl::Time UniqueIdMaker::next_deadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [unused, pending] : pending_) next = std::min(next, pending.deadline);
  return next;
}

}  // namespace epd
