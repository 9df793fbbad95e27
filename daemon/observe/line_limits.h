// How many lines of a kind a user can have written to the log.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/core/allowance.h"

namespace epd {

// Of each kind every user has some lines at once and then few a second; others are counted. Not thread-safe.
class LineLimits {
 public:
  static constexpr uint64_t kAtOnce = 2048;  // A node's ranks may all come at once.
  static constexpr uint64_t kPerSecond = 2;
  static constexpr absl::Duration kTellEvery = absl::Seconds(10);

  // Whether a line of the kind `what`, which `uid` has caused, is written at `now`.
  bool Admit(uint32_t uid, absl::string_view what, absl::Time now);

  struct LeftOut {
    uint32_t uid = 0;
    std::string what;
    uint64_t num_lines = 0;
  };
  // What was not written since the last time, kTellEvery ago at least. Forgets users who have caused little of late.
  std::vector<LeftOut> TakeLeftOut(absl::Time now);

 private:
  struct Kind {
    Allowance allowance{kAtOnce, kPerSecond};
    uint64_t num_left_out = 0;
  };

  std::map<std::pair<uint32_t, std::string>, Kind> kinds_;  // By uid and `what`.
  absl::Time told_ = absl::InfinitePast();
};

}  // namespace epd
