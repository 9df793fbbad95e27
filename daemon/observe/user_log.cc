#include "daemon/observe/user_log.h"

#include <chrono>
#include <string>
#include <vector>

#include "absl/base/const_init.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/observe/line_limits.h"

namespace epd {
namespace {

// Of a clock that never jumps.
absl::Time SteadyNow() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return absl::UnixEpoch() + absl::FromChrono(now);
}

absl::Mutex g_mutex(absl::kConstInit);
LineLimits& Limits() ABSL_EXCLUSIVE_LOCKS_REQUIRED(g_mutex) {
  static auto* const limits = new LineLimits();  // Threads may log until the process is gone.
  return *limits;
}

}  // namespace

void LogOfUser(uint32_t uid, LogLevel level, absl::string_view what,
               std::initializer_list<LogField> fields) {
  {
    absl::MutexLock lock(&g_mutex);
    if (!Limits().Admit(uid, what, SteadyNow())) return;
  }
  Log(level, what, fields);
}

void LogWhatWasLeftOut() {
  std::vector<LineLimits::LeftOut> all;
  {
    absl::MutexLock lock(&g_mutex);
    all = Limits().TakeLeftOut(SteadyNow());
  }
  for (const LineLimits::LeftOut& one : all) {
    Log(LogLevel::kWarn, "lines left out",
        {{"uid", one.uid == kNoUid ? "all" : absl::StrCat(one.uid)},
         {"of", one.what},
         {"count", one.num_lines}});
  }
}

}  // namespace epd
