// Which execution a call in a GPU's stream is of: sites' calls are counted, in rounds.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "daemon/core/execution.h"
#include "daemon/core/group_spec.h"
#include "daemon/core/ids.h"
#include "proto/epd/v1/segment.h"

namespace epd {

// Counts the calls of one tenant. Streams block their ranks in order, so ranks that enter at different calls of their programs would
// wait for each other for ever. Each round begins with synchronising them: until all ranks are at one call, all
// calls have number 0, and those at which not everybody can be fail. Then the sites count. In each round they are
// programs of their own, so that nothing of an earlier one is matched.
class StreamRound {
 public:
  using Call = std::pair<Rank, ProgramId>;

  bool synchronising() const { return synchronising_; }
  // A call of a site, as it announces it, with the program and the execution that it is of. Sites count for themselves: which of them
  // run in one execution only the stream knows.
  shm::SlotRequest Count(const shm::SlotRequest& request);
  // All ranks are at one call, or have passed it. `waiting`: the calls in which ranks are.
  void Synchronise(const std::vector<Call>& waiting);
  // The ranks must be synchronised anew.
  void Restart();

 private:
  bool synchronising_ = true;
  uint32_t round_ = 0;
  std::map<Call, uint64_t> num_calls_;  // In this round, since they were synchronised.
};

// The announce with an error of its own for what a call on a CPU finds wrong before it announces, and a stream's
// kernels only report. Of a dispatch that is too much for a rank all ranks hear as of an overflow.
shm::SlotRequest ReportFault(const shm::SlotRequest& request, const GroupSpec& spec);

}  // namespace epd
