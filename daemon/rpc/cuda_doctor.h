// Asks this node's worker program what there is of CUDA; epd itself opens no such library.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "daemon/core/unique_fd.h"
#include "daemon/node/node.h"
#include "daemon/node/spawn.h"
#include "proto/epd/v1/node.pb.h"

namespace epd {

// Runs one process at a time; who asks meanwhile gets its answer. Control thread.
class CudaDoctor {
 public:
  using Done = std::function<void(const v1::GetDoctorResponse&)>;

  explicit CudaDoctor(Node& node) : node_(node) {}
  ~CudaDoctor() { FinishAll(); }

  // Calls `done` with the findings, later; with one that says why, where there are none.
  void Ask(Done done);
  // Answers everybody with what is known, and ends the process.
  void FinishAll();

 private:
  absl::Status Start();
  void Read();
  void OnExit();
  void Finish(const std::string& problem);

  Node& node_;
  std::optional<Child> child_;
  UniqueFd pipe_;
  std::string output_;
  std::vector<Done> waiting_;
};

}  // namespace epd
