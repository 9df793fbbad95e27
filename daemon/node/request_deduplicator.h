// Operators' orders by request id: asking twice does a thing once and gets one answer.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "daemon/core/ids.h"

namespace epd {

// Not thread-safe; the control thread owns it.
class RequestDeduplicator {
 public:
  struct Answer {
    absl::Status status;
    GroupId group;
  };
  using Done = std::function<void(const Answer&)>;

  // `max_orders`, at this moment: answers that are remembered, the newest, and callers that wait for one.
  explicit RequestDeduplicator(std::function<size_t()> max_orders)
      : max_orders_(std::move(max_orders)) {}

  // The number under which a new order goes to control; nothing when `key` is known: then `done` is
  // called with its answer, now or when it comes. An empty key is never known. Keys are
  // "<method>/<request_id>". Nothing, too, when too many wait: `done` is called with
  //   RESOURCE_EXHAUSTED  names the limit
  std::optional<RequestId> Begin(const std::string& key, Done done);

  // Control's answer; calls everybody who asked. Unknown numbers are ignored.
  void Finish(RequestId request, const Answer& answer);

  // What was answered, the oldest first, and the next number: for another program of this process. Who still waits
  // asks it again.
  struct Finished {
    RequestId request;
    std::string key;
    Answer answer;
  };
  std::vector<Finished> finished() const;
  uint64_t next() const { return next_; }
  void Restore(const std::vector<Finished>& finished, uint64_t next);

  // Answers everything that is open; for the end of the process.
  void FinishAll(const absl::Status& status);

 private:
  struct Order {
    std::string key;
    std::vector<Done> waiting;
    std::optional<Answer> answer;
  };

  const std::function<size_t()> max_orders_;
  size_t num_waiting_ = 0;
  uint64_t next_ = 1;
  std::map<RequestId, Order> orders_;
  std::map<std::string, RequestId> by_key_;
  std::deque<RequestId> finished_;
};

}  // namespace epd
