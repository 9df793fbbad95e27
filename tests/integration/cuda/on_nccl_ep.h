// What the tests of groups on the fake NCCL EP share.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "tests/integration/client_c/harness/exchange_case.h"
#include "tests/integration/client_c/harness/node_fleet.h"
#include "tests/integration/cuda/on_cuda.h"

namespace epd::testing {

inline const JoinOptions kOnNcclEp = {.group = "ep", .backend = "nccl_ep"};
inline const std::vector<std::string> kNcclEpFlags = {"--cuda_staging_bytes=512MiB",
                                                      "--plain_unique_ids=allow"};

// What the library can do, of small sizes.
inline ExchangeCase BasicOnNcclEp(uint32_t num_ranks) {
  return {.num_ranks = num_ranks,
          .num_experts = 4 * num_ranks,
          .top_k = 3,
          .dtype = EPD_DTYPE_BFLOAT16,
          .worker_executor = true,
          .distinct = true};
}

class OnNcclEp : public OnFakeGpu {
 protected:
  OnNcclEp() {
    const std::string nvcc = folder_.path() + "/nvcc";
    std::ofstream(nvcc) << "#!/bin/sh\n";
    chmod(nvcc.c_str(), 0700);
    setenv("NCCL_EP_JIT_NVCC", nvcc.c_str(), 1);
    setenv("XDG_CACHE_HOME", folder_.path().c_str(), 1);
  }
  ~OnNcclEp() override {
    for (const char* name : {"NCCL_EP_JIT_NVCC", "XDG_CACHE_HOME", "EPD_FAKE_NCCL_EP",
                             "EPD_FAKE_NCCL_EP_AT", "EPD_FAKE_NCCL_EP_ONCE"}) {
      unsetenv(name);
    }
  }
  // Processes that begin from now on: `how` in the call `at`, once for each EndTheNextCall.
  void Arm(const char* how, const char* at) const {
    setenv("EPD_FAKE_NCCL_EP", how, 1);
    setenv("EPD_FAKE_NCCL_EP_AT", at, 1);
    setenv("EPD_FAKE_NCCL_EP_ONCE", marker_.c_str(), 1);
  }
  void EndTheNextCall() const { std::ofstream(marker_) << "now"; }
  bool CallHasEnded() const { return access(marker_.c_str(), F_OK) != 0; }

  static int NumEnds(NodeFleet& fleet, int num_nodes) {
    int ends = 0;
    for (int n = 0; n < num_nodes; ++n) {
      const std::string log = fleet.node(n).Log();
      for (size_t at = log.find("worker ended"); at != std::string::npos;
           at = log.find("worker ended", at + 1)) {
        ++ends;
      }
    }
    return ends;
  }

  const ScratchFolder folder_;
  const std::string marker_ = folder_.path() + "/marker";
};

}  // namespace epd::testing
