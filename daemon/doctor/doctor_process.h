// Asks this node's worker program about the machine, in a process of its own: epd opens no library of CUDA's, and waits for no
// name to resolve.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "daemon/core/unique_fd.h"
#include "daemon/node/loop/event_loop.h"
#include "daemon/process/spawn.h"
#include "proto/epd/v1/node.pb.h"

namespace epd {

// Runs one process at a time; who asks meanwhile gets its answer. Control thread.
class DoctorProcess {
 public:
  using Done = std::function<void(const v1::GetDoctorResponse&)>;

  // `loop` outlives this. `unknown`: what is said where the process fails, with why as what was found.
  DoctorProcess(EventLoop& loop, std::string worker_binary, v1::Finding unknown)
      : loop_(loop), worker_binary_(std::move(worker_binary)), unknown_(std::move(unknown)) {}
  ~DoctorProcess() { FinishAll(); }

  // Runs the worker's program with `argument`, which names its mode, and calls `done` with the findings, later; with one that
  // says why, where there are none. Who asks while it runs gets what it finds.
  void Ask(const std::string& argument, Done done);
  // Answers everybody with what is known, and ends the process.
  void FinishAll();

 private:
  absl::Status Start(const std::string& argument);
  v1::GetDoctorResponse OnlyProblem(const std::string& problem) const;
  void Read();
  void OnExit();
  void Finish(const std::string& problem);

  EventLoop& loop_;
  const std::string worker_binary_;
  const v1::Finding unknown_;
  std::optional<Child> child_;
  UniqueFd pipe_;
  std::string output_;
  std::vector<Done> waiting_;
};

}  // namespace epd
