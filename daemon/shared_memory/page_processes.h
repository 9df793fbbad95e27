// Makes and gives back pages in processes beside this one: one for each user whose files they are of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/unique_fd.h"
#include "daemon/process/spawn.h"
#include "daemon/shared_memory/file_pages.h"

namespace epd {

// Giving back waits for a lock that a process of the user can hold for ever (file_pages.h), and no signal ends that wait: a thread that
// waits keeps its whole process from ending. So a process of its own waits, and with it only what is of the same user; it ends
// by itself once this one has, or as soon as the lock is free. Where no process can be had, what is asked waits until one can. Of
// one thread; waits for nothing, but for the time of a process's start.
class PageProcesses {
 public:
  // Of one user, in the order in which they are added. Descriptors are the caller's until it is done.
  struct Task {
    uint64_t id = 0;
    PageAction action = PageAction::kMake;
    std::vector<FilePages> pages = {};
  };
  struct Done {
    uint64_t id = 0;
    int error = 0;  // The errno of the first pages that failed, and cannot be had by asking again.
  };

  // `program`: one that takes kPageProcessFlag; "": all is done where it is added, for tests.
  explicit PageProcesses(std::string program) : program_(std::move(program)) {}

  // Before it nothing is done. It may be called again.
  //   RESOURCE_EXHAUSTED  descriptors
  absl::Status Start();
  // Readable when TakeDone may have something new; -1 before Start.
  int ready_fd() const { return epoll_.get(); }

  // The user's process is there and stays until Release, so that nobody waits for its start.
  void Hold(uint32_t uid);
  void Release(uint32_t uid, absl::Time now);
  void Add(uint32_t uid, Task task, absl::Time now);
  std::vector<Done> TakeDone(absl::Time now);
  bool has_done() const { return !done_.empty(); }
  size_t num_open() const { return num_open_; }  // Tasks that TakeDone has not named yet.
  // Whether TakeDone may have something within a moment: somebody is at work who is not late.
  bool awaits_soon() const;

  // Looks who is late, which is said once of each, tries again to have processes, and lets those go of which nothing was asked for
  // a while.
  void Tick(absl::Time now);
  absl::Time next_deadline() const;
  struct Warning {
    uint32_t uid = 0;
    std::string text;
  };
  std::vector<Warning> TakeWarnings() { return std::exchange(warnings_, {}); }
  // Why what is asked for users waits now, by uid, where that has changed since it was last taken.
  std::optional<std::map<uint32_t, std::string>> TakeProblems();

  // Lets all go, which end once they have done what was sent, and waits up to `limit` for it. Tasks that TakeDone has not named
  // are lost.
  void End(absl::Duration limit);
  // After End: those that still are at work.
  std::vector<int> NotEnded() const;
  // After Start: takes the exit status of a child of this process that another program had in its place.
  void AdoptEnding(int pid);

 private:
  struct Process {
    Child child;
    UniqueFd socket;  // Invalid: there is no process.
    std::deque<Task> tasks;
    size_t num_sent = 0;      // Pages of the first task that were sent, or are done.
    size_t num_answered = 0;  // Of them.
    int num_ends = 0;         // Of processes, in the first task.
    absl::Time late = absl::InfiniteFuture();   // Where it has not answered before.
    absl::Time retry = absl::InfiniteFuture();  // Of the first task.
    bool said_retry = false;                    // Since it last answered.
    std::string problem;                        // Why its tasks wait; "": nothing is known.
    bool is_held = false;
    absl::Time goes = absl::InfiniteFuture();  // Where nothing is asked of it before.
  };
  absl::Status StartProcess(uint32_t uid, Process& process);
  void SetProblem(Process& process, std::string problem);
  void Drop(Process& process);
  // Sends the next part of the first task.
  void Send(uint32_t uid, Process& process, absl::Time now);
  void Receive(uint32_t uid, Process& process, absl::Time now);
  void Answered(uint32_t uid, Process& process, int error, absl::Time now);
  void Ended(uint32_t uid, Process& process, const std::string& why, absl::Time now);
  void TryLater(uint32_t uid, Process& process, const std::string& why, absl::Time now);
  void FinishFirst(Process& process, int error);
  void DoHere(Process& process);
  void Rest(Process& process, absl::Time now);
  void Reap();

  const std::string program_;
  UniqueFd epoll_;
  std::map<uint32_t, Process> processes_;  // By uid.
  std::vector<Child> ended_;               // To be reaped.
  std::vector<Done> done_;
  size_t num_open_ = 0;
  std::vector<Warning> warnings_;
  bool problems_changed_ = false;
};

}  // namespace epd
