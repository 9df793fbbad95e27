// Asks workers for the last operations of groups, when an operator wants to see them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "absl/time/time.h"
#include "daemon/core/ids.h"
#include "daemon/core/worker_name.h"
#include "proto/epd/v1/worker.pb.h"

namespace epd {

// Each keeps those of its ranks in its own memory and sends them only when it is asked. Control thread.
class PastQuestions {
 public:
  // What the workers said of each group; without those of which none said anything in time.
  using Answers = std::map<GroupId, v1::WorkerPast>;
  using Done = std::function<void(const Answers&)>;
  using Send = std::function<void(const WorkerName& to, const v1::ToWorker&)>;
  struct Asked {
    GroupId group;
    WorkerName worker;  // One of those that serve it.
  };

  explicit PastQuestions(Send send) : send_(std::move(send)) {}

  // `done` is called once: at once when `asked` is empty, else when all have been answered, or
  // after a short wait.
  void Ask(const std::vector<Asked>& asked, uint32_t max_of_rank, absl::Time now, Done done);
  void Take(const v1::WorkerPast& past);
  void Tick(absl::Time now);
  absl::Time NextDeadline() const;

 private:
  struct Open {
    std::map<uint64_t, GroupId> awaited;  // By the number of its question.
    Answers answers;
    absl::Time until;
    Done done;
  };

  Send send_;
  uint64_t next_ = 1;
  std::map<uint64_t, Open> open_;  // By the number of its first question.
};

}  // namespace epd
