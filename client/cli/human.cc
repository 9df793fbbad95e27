#include "client/cli/human.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace epd::cli {
namespace {

struct TimeUnit {
  int64_t seconds;
  const char* name;
};

constexpr std::array<TimeUnit, 4> kTimeUnits = {
    {{24 * 3600, "d"}, {3600, "h"}, {60, "m"}, {1, "s"}}};

}  // namespace

std::string HumanBytes(uint64_t bytes) {
  constexpr std::array<const char*, 7> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string HumanDuration(absl::Duration duration) {
  if (duration <= absl::ZeroDuration()) return "0s";
  if (duration < absl::Seconds(1)) {
    return absl::StrCat(absl::ToInt64Milliseconds(duration), "ms");
  }
  int64_t rest = absl::ToInt64Seconds(duration);
  std::string text;
  int shown = 0;
  for (const TimeUnit& unit : kTimeUnits) {
    const int64_t count = rest / unit.seconds;
    rest %= unit.seconds;
    if (count == 0 && shown == 0) continue;
    if (count > 0) absl::StrAppend(&text, count, unit.name);
    if (++shown == 2) break;
  }
  return text;
}

std::string HumanDuration(const google::protobuf::Duration& duration) {
  return HumanDuration(ToDuration(duration));
}

absl::Duration ToDuration(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

std::string HumanCount(uint64_t count) {
  const std::string digits = absl::StrCat(count);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string NonZero(uint64_t number) { return number == 0 ? "" : absl::StrCat(number); }

std::string HumanRanges(const std::vector<uint32_t>& sorted) {
  if (sorted.empty()) return "-";
  std::string text;
  for (size_t i = 0; i < sorted.size();) {
    size_t last = i;
    while (last + 1 < sorted.size() && sorted[last + 1] == sorted[last] + 1) ++last;
    if (!text.empty()) text += ",";
    absl::StrAppend(&text, sorted[i]);
    if (last > i) absl::StrAppend(&text, "-", sorted[last]);
    i = last + 1;
  }
  return text;
}

std::string Shortened(const std::string& text, size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  size_t end = max_bytes - 3;
  // Not in the middle of a UTF-8 character.
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

}  // namespace epd::cli
