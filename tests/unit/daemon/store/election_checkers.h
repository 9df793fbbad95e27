// What must hold in every recorded history of elections, and the checkers; see election.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "daemon/store/leadership.h"

namespace epd {

// One leadership, from Lead to stepping down or death, by one clock for all nodes.
struct Reign {
  uint64_t incarnation = 0;
  int64_t revision = 0;
  EpochBlock block;
  absl::Time from;
  absl::Time until = absl::InfiniteFuture();
  bool dead = false;        // Ended by a crash: nobody has said so.
  bool by_refusal = false;  // It replaced a leader whose address refused connections.
};

struct ElectionHistory {
  std::vector<Reign> reigns;  // In the order of their begin.
  struct Write {
    uint64_t incarnation = 0;
    int64_t expected = 0;  // Revision that the writer compared.
    int64_t actual = 0;    // ... and what the key's was.
    bool applied = false;
  };
  std::vector<Write> writes;
  absl::Time faults_end;
  absl::Time end;
};

// Each returns what is wrong, or "".

inline std::string CheckAgreement(const ElectionHistory& history) {
  for (size_t i = 0; i < history.reigns.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (history.reigns[i].revision == history.reigns[j].revision)
        return "agreement: two leaderships have revision " +
               std::to_string(history.reigns[i].revision);
    }
  }
  return "";
}

inline std::string CheckGrowing(const ElectionHistory& history) {
  for (const Reign& a : history.reigns) {
    for (const Reign& b : history.reigns) {
      if (a.revision >= b.revision) continue;
      if (b.block.floor < a.block.ceiling)
        return "growing: revision " + std::to_string(b.revision) + " begins at epoch " +
               std::to_string(b.block.floor) + ", below " + std::to_string(a.block.ceiling);
    }
  }
  return "";
}

inline std::string CheckNoOverlap(const ElectionHistory& history) {
  for (const Reign& old : history.reigns) {
    for (const Reign& young : history.reigns) {
      if (young.revision <= old.revision || young.by_refusal || old.dead) continue;
      if (old.from < young.until && young.from < old.until)
        return "no_overlap: revisions " + std::to_string(old.revision) + " and " +
               std::to_string(young.revision) + " led at the same time";
    }
  }
  return "";
}

inline std::string CheckFenced(const ElectionHistory& history) {
  for (const auto& write : history.writes) {
    if (write.applied && write.expected != write.actual)
      return "fenced: a write that expected revision " + std::to_string(write.expected) +
             " was applied at " + std::to_string(write.actual);
  }
  return "";
}

inline std::string CheckReclaimed(const ElectionHistory& history, absl::Duration within) {
  if (history.end < history.faults_end + within) return "";
  for (const Reign& reign : history.reigns) {
    if (!reign.dead && reign.until == absl::InfiniteFuture() &&
        reign.from <= history.faults_end + within)
      return "";
  }
  return "reclaimed: nobody leads although faults have ended";
}

// A leader whose lease was well until the end of the run is never replaced: `calm` says that the
// run had no fault at all.
inline std::string CheckKeeps(const ElectionHistory& history, bool calm) {
  if (calm && history.reigns.size() != 1)
    return "keeps: " + std::to_string(history.reigns.size()) + " leaderships without a fault";
  return "";
}

}  // namespace epd
