// What a rank says of a call that ranks made without the worker: for figures and history.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "daemon/core/ids.h"
#include "daemon/worker/engine/announcement.h"
#include "daemon/worker/engine/operation_figures.h"
#include "daemon/worker/engine/tenant.h"

namespace epd {

// Out of client memory: any bytes, but `name`, which is clean.
struct DirectOutcome {
  GroupId group;
  Formation formation;
  Rank rank;
  OperationKey key;
  uint64_t raw_execution = 0;
  std::string name;
  Announcement said;
  bool ended = false;      // With a good outcome; else the call has only begun.
  bool announced = false;  // The worker has heard of it.
  absl::Time published_at;
  absl::Time ended_at;
  absl::Duration waited;              // From its publication to the last rank's.
  absl::Duration gathered;            // From the first rank's.
  uint32_t last_rank = 0;             // Who published last.
  std::vector<uint16_t> routes = {};  // Of a prepare: the rank's to each expert.
  uint32_t padded_rows = 0;           // In the zones of the rank.
};

// Counts the execution as begun and, of one that has ended, the rank's part in the tenant's figures. An operation is
// counted with its first rank's.
void CountDirect(const DirectOutcome& outcome, Tenant& tenant, OperationFigures& figures);

}  // namespace epd
