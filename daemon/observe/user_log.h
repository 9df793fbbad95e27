// Lines that clients can cause as often as they like: none of them fills the log.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "absl/strings/string_view.h"
#include "daemon/observe/log.h"

namespace epd {

// Of lines that no single user has caused.
inline constexpr uint32_t kNoUid = UINT32_MAX;

// As Log, of what `uid` has done; of each `what` as many lines as LineLimits lets through. Thread-safe.
void LogOfUser(uint32_t uid, LogLevel level, absl::string_view what,
               std::initializer_list<LogField> fields);

// Says how many lines were left out, if it is time to. Thread-safe; to be called now and then.
void LogWhatWasLeftOut();

}  // namespace epd
