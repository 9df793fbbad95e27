// Which calls this process's ranks may publish for themselves: what the worker has told of their programs.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "client/c/digest.h"
#include "client/c/mutex.h"

namespace epd::client {

// Of one formation. Ranks count executions from where each of them joined; the number that is the same on all of them
// only the worker knows, and tells with every good answer while it holds. Thread-safe.
class DirectPrograms {
 public:
  struct Call {
    uint32_t rank = 0;
    Digest program = {};
    uint64_t raw_execution = 0;
    uint32_t ordinal = 0;
    uint32_t occurrence = 0;
    bool prepares = false;
  };
  struct Turn {
    uint64_t execution = 0;  // The same on all ranks.
    uint32_t generation = 0;
  };

  // The worker's reply to `call`: its number, and the generation in which later ones may be published.
  void Learn(const Call& call, const Turn& told);

  // Whether `call` may be published, and as what. Never the same call twice, never one of an earlier execution than the
  // last: peers may still show what they have published for it.
  std::optional<Turn> Begin(const Call& call);

  // How a published call went. Of a program that met nobody often enough only some executions are tried, on every rank the
  // same, so that they meet again if they can: some rank may never publish, or, of an earlier release, no prepares.
  void Note(const Call& call, bool met);

 private:
  struct Program {
    uint64_t raw_base = 0;  // With `base`: execution = raw - raw_base + base.
    uint64_t base = 0;
    uint32_t generation = 0;
    uint64_t last = 0;                                // The last execution that has begun, as told.
    std::vector<std::pair<uint32_t, uint32_t>> used;  // Its calls that have begun.
    std::array<uint32_t, 2> num_missed = {};          // In a row: of rows; of prepares.
  };
  // False: it was used, or is of an earlier execution.
  static bool Use(Program& program, uint64_t execution, const Call& call);

  Mutex mutex_;
  std::map<std::pair<uint32_t, Digest>, Program> programs_ EPD_GUARDED_BY(mutex_);
};

}  // namespace epd::client
