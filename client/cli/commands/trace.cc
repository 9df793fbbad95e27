#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/commands/command.h"
#include "client/cli/human.h"
#include "client/cli/printers/trace_json.h"

namespace epd::cli {
namespace {

using epd::v1::GetTraceRequest;
using epd::v1::GetTraceResponse;

// Workers keep some thousand parts of operations, and send a few hundred at a time.
constexpr absl::Duration kBetweenPages = absl::Milliseconds(200);
// Long against a round of questions, short against forgetting to switch it off.
constexpr int64_t kKeepForSeconds = 30;
// A worker's ring is some pages long.
constexpr int kPagesOfRing = 140;
constexpr absl::Duration kLateReading = absl::Seconds(2);
// Some 200 MB of JSON.
constexpr int kMaxParts = 200'000;

// Asks page by page and keeps where each worker's last one ended.
class Pages {
 public:
  explicit Pages(const CommandContext& context) : context_(context) {
    request_.set_group(context.options.group);
    if (context.options.tenant.has_value()) request_.set_tenant(*context.options.tenant);
    request_.mutable_keep_for()->set_seconds(kKeepForSeconds);
  }

  // True: it was answered, with report().message.
  bool Next(bool open) {
    request_.set_open(open);
    report_ = CallNode(context_, "GetTrace", &epd::v1::Node::Stub::GetTrace, request_);
    if (report_.message == nullptr) return false;
    request_.clear_cursors();
    more_ = false;
    for (const epd::v1::NodeTrace& trace : page().traces()) {
      epd::v1::TraceCursor& cursor = *request_.add_cursors();
      cursor.set_node(trace.node());
      cursor.set_worker(trace.worker());
      cursor.set_worker_incarnation(trace.worker_incarnation());
      cursor.set_next(trace.page().next());
      more_ = more_ || trace.page().more();
    }
    return true;
  }
  const GetTraceResponse& page() const {
    return static_cast<const GetTraceResponse&>(*report_.message);
  }
  bool more() const { return more_; }
  Report TakeReport() { return std::move(report_); }

 private:
  const CommandContext& context_;
  GetTraceRequest request_;
  Report report_;
  bool more_ = false;
};

int NumParts(const GetTraceResponse& traces) {
  int parts = 0;
  for (const epd::v1::NodeTrace& trace : traces.traces()) parts += trace.page().ranks_size();
  return parts;
}

}  // namespace

Report RunTrace(const CommandContext& context) {
  Pages pages(context);
  // What was kept for somebody else before is passed over.
  for (int i = 0; i < kPagesOfRing && (i == 0 || pages.more()); ++i) {
    if (!pages.Next(/*open=*/false)) return pages.TakeReport();
  }
  GetTraceResponse all;
  const absl::Time end = absl::Now() + context.options.seconds;
  for (bool last = false; !last && NumParts(all) <= kMaxParts;) {
    if (!pages.more()) absl::SleepFor(std::min(kBetweenPages, end - absl::Now()));
    // What is open is asked for once, when all else is there; or late, of a group that does more than can be asked for.
    last = absl::Now() >= end && (!pages.more() || absl::Now() >= end + kLateReading);
    if (!pages.Next(/*open=*/last)) return pages.TakeReport();
    AddTraces(pages.page(), all);
  }
  Report report;
  for (const std::string& why : all.unanswered())
    absl::StrAppend(&report.error, report.error.empty() ? "" : "; ", why);
  if (NumParts(all) > kMaxParts)
    report.error = absl::StrCat("stopped early: more than ", kMaxParts,
                                " ranks' operations; trace for a shorter time (--seconds)");
  if (NumParts(all) == 0 && report.error.empty())
    report.error = absl::StrCat("group ", context.options.group, " did nothing in ",
                                HumanDuration(context.options.seconds));
  auto trace = std::make_unique<ChromeTrace>(MakeChromeTrace(all, context.options.group));
  report.table = ChromeTraceJson(*trace);
  report.message = std::move(trace);
  return report;
}

}  // namespace epd::cli
