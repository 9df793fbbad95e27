#include "client/cli/progress.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/cli/human.h"
#include "proto/machine/thread.h"

namespace epd::cli {
namespace {

constexpr absl::Duration kSilence = absl::Seconds(1);
constexpr absl::Duration kPause = absl::Milliseconds(250);
constexpr char kEraseLine[] = "\r\033[K";

// Nothing while they do not become fewer.
std::optional<absl::Duration> TimeLeft(const std::vector<OpenOperations>& open) {
  if (open.size() < 2 || open.back().count >= open.front().count) return std::nullopt;
  const auto done = static_cast<double>(open.front().count - open.back().count);
  return (open.back().at - open.front().at) * (static_cast<double>(open.back().count) / done);
}

}  // namespace

std::string ProgressText(const std::string& command, absl::Duration elapsed, absl::Duration limit,
                         const std::vector<OpenOperations>& open) {
  const absl::Duration most = std::max(limit - elapsed, absl::ZeroDuration());
  const std::optional<absl::Duration> left = TimeLeft(open);
  std::string text = absl::StrCat(command, ": ", HumanDuration(elapsed));
  if (!open.empty())
    absl::StrAppend(&text, ", ", open.back().count, " of ", open.front().count, " operations open");
  if (most == absl::ZeroDuration()) return text;
  return left.has_value() && *left < most
             ? absl::StrCat(text, ", about ", HumanDuration(*left), " left")
             : absl::StrCat(text, ", at most ", HumanDuration(most), " left");
}

Report WithProgress(const std::string& command, absl::Duration limit,
                    const std::function<Report()>& work,
                    const std::function<std::optional<uint64_t>()>& count_open,
                    std::ostream& terminal) {
  const absl::Time start = absl::Now();
  absl::Notification done;
  Report report;
  Thread worker;
  const auto work_there = [&] {
    report = work();
    done.Notify();
  };
  // Where no thread can be had, the command works, and says nothing of its progress.
  if (StartThread({"epctl-work"}, work_there, &worker) != 0) return work();
  std::vector<OpenOperations> open;
  const auto count = [&] {
    if (!count_open) return;
    if (const std::optional<uint64_t> now = count_open(); now.has_value())
      open.push_back({absl::Now() - start, *now});
  };
  if (!done.WaitForNotificationWithTimeout(kSilence)) {
    do {
      count();
      terminal << kEraseLine << ProgressText(command, absl::Now() - start, limit, open)
               << std::flush;
    } while (!done.WaitForNotificationWithTimeout(kPause));
    terminal << kEraseLine << std::flush;
  }
  worker.join();
  return report;
}

}  // namespace epd::cli
