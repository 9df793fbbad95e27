// Asks this node's worker program what there is of CUDA; epd itself opens no such library.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "daemon/core/unique_fd.h"
#include "daemon/node/loop/event_loop.h"
#include "daemon/node/workers/spawn.h"
#include "proto/epd/v1/node.pb.h"

namespace epd {

// Runs one process at a time; who asks meanwhile gets its answer. Control thread.
class CudaDoctorProcess {
 public:
  using Done = std::function<void(const v1::GetDoctorResponse&)>;

  // `loop` outlives this.
  CudaDoctorProcess(EventLoop& loop, std::string worker_binary, std::string nccl_library)
      : loop_(loop),
        worker_binary_(std::move(worker_binary)),
        nccl_library_(std::move(nccl_library)) {}
  ~CudaDoctorProcess() { FinishAll(); }

  // Calls `done` with the findings, later; with one that says why, where there are none.
  void Ask(Done done);
  // Answers everybody with what is known, and ends the process.
  void FinishAll();

 private:
  absl::Status Start();
  void Read();
  void OnExit();
  void Finish(const std::string& problem);

  EventLoop& loop_;
  const std::string worker_binary_;
  const std::string nccl_library_;
  std::optional<Child> child_;
  UniqueFd pipe_;
  std::string output_;
  std::vector<Done> waiting_;
};

}  // namespace epd
