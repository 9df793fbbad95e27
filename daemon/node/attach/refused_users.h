// Users who may not attach for a while. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace epd {

class RefusedUsers {
 public:
  // `why` is told to who comes until then.
  void Refuse(uint32_t uid, absl::Time until, std::string why);
  //   PERMISSION_DENIED  with why, and for how much longer
  absl::Status Check(uint32_t uid, absl::Time now);

 private:
  struct Refusal {
    absl::Time until;
    std::string why;
  };
  std::map<uint32_t, Refusal> refused_;  // By uid.
};

}  // namespace epd
