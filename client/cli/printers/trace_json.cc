#include "client/cli/printers/trace_json.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace epd::cli {
namespace {

using epd::v1::GetTraceResponse;
using epd::v1::NodeTrace;
using epd::v1::RankTrace;

// Perfetto wants a time above zero in each event, and no empty slices.
constexpr double kFirstUs = 1;
constexpr double kShortestUs = 0.001;

// A rank's part with its times on the common clock.
struct TimedPart {
  const RankTrace* part = nullptr;
  uint32_t process = 0;
  int64_t shift_ns = 0;
  uint32_t thread = 0;

  // INT64_MIN: it has not come there.
  int64_t At(int64_t ns) const {
    return ns == 0 ? std::numeric_limits<int64_t>::min() : ns + shift_ns;
  }
  int64_t begin() const { return At(part->announced_ns()); }
};

// All parts of one operation.
struct OperationParts {
  std::vector<const TimedPart*> parts;
  const TimedPart* last = nullptr;  // That called last.
  std::string missing;
};

struct Clocks {
  std::map<std::string, int64_t> shifts;  // By node.
  std::vector<ChromeTrace::Clock> shown;
  int64_t epoch_ns = 0;  // Unix time at which the common clock was 0.
};

int64_t WallOf(const NodeTrace& trace) { return trace.unix_ns() - trace.monotonic_ns(); }

// Without a reference, and where nobody has compared, the common clock is the wall clock.
int64_t EpochOf(const GetTraceResponse& traces, const NodeTrace* reference) {
  if (reference != nullptr) return WallOf(*reference);
  for (const NodeTrace& trace : traces.traces()) {
    if (trace.has_clock()) return trace.clock().reference_epoch_ns();
  }
  return 0;
}

// A node whose clock nobody has compared is placed by its wall clock, or left as it is when there is no reference either.
Clocks MakeClocks(const GetTraceResponse& traces) {
  const NodeTrace* reference = nullptr;
  for (const NodeTrace& trace : traces.traces()) {
    if (trace.is_reference() && reference == nullptr) reference = &trace;
  }
  Clocks clocks;
  clocks.epoch_ns = EpochOf(traces, reference);
  for (const NodeTrace& trace : traces.traces()) {
    ChromeTrace::Clock clock;
    clock.set_node(trace.node());
    int64_t shift = 0;
    if (trace.has_clock()) {
      shift = trace.clock().offset_ns();
      clock.set_by("round trips");
      clock.set_reference(trace.clock().reference());
      clock.set_error_ms(static_cast<double>(trace.clock().round_trip_ns()) / 2e6);
      clock.set_num_samples(trace.clock().num_samples());
    } else if (trace.is_reference()) {
      clock.set_by("reference");
    } else {
      shift = WallOf(trace) - (reference == nullptr ? 0 : WallOf(*reference));
      clock.set_by("wall clock");
    }
    clock.set_offset_ms(static_cast<double>(shift) / 1e6);
    if (clocks.shifts.emplace(trace.node(), shift).second) clocks.shown.push_back(clock);
  }
  return clocks;
}

ChromeTrace::Event Metadata(const char* what, uint32_t process, uint32_t thread) {
  ChromeTrace::Event event;
  event.set_name(what);
  event.set_ph("M");
  event.set_pid(process);
  event.set_tid(thread);
  return event;
}

// Gives each part a thread of its rank in which no other one runs at that time.
class Threads {
 public:
  uint32_t Place(const TimedPart& part, int64_t end, ChromeTrace& out) {
    const auto rank = std::tuple(part.process, part.part->tenant(), part.part->rank());
    std::vector<Row>& rows = rows_[rank];
    for (Row& row : rows) {
      if (row.busy_until > part.begin()) continue;
      row.busy_until = end;
      return row.thread;
    }
    rows.push_back({next_++, end});
    Name(part, rows.back().thread, rows.size(), out);
    return rows.back().thread;
  }

 private:
  struct Row {
    uint32_t thread = 0;
    int64_t busy_until = 0;
  };

  static void Name(const TimedPart& part, uint32_t thread, size_t row, ChromeTrace& out) {
    const std::string& tenant = part.part->tenant();
    ChromeTrace::Event name = Metadata("thread_name", part.process, thread);
    name.mutable_args()->set_name(absl::StrCat(
        "rank ", part.part->rank(), tenant.empty() ? "" : absl::StrCat(" of tenant ", tenant),
        " (pid ", part.part->pid(), ")", row > 1 ? absl::StrCat(", another call ", row) : ""));
    *out.add_traceevents() = std::move(name);
    ChromeTrace::Event order = Metadata("thread_sort_index", part.process, thread);
    order.mutable_args()->set_sort_index(part.part->rank() * 64 + static_cast<uint32_t>(row));
    *out.add_traceevents() = std::move(order);
  }

  std::map<std::tuple<uint32_t, std::string, uint32_t>, std::vector<Row>> rows_;
  uint32_t next_ = 1;
};

std::map<std::string, OperationParts> Group(const std::vector<TimedPart>& parts) {
  std::map<std::string, OperationParts> operations;
  for (const TimedPart& part : parts) {
    OperationParts& operation = operations[part.part->trace_id()];
    operation.parts.push_back(&part);
    if (operation.last == nullptr || part.begin() > operation.last->begin()) operation.last = &part;
  }
  for (auto& [id, operation] : operations) {
    std::set<uint32_t> called;
    bool open = false;
    for (const TimedPart* part : operation.parts) {
      called.insert(part->part->rank());
      open = open || part->part->ended_ns() == 0;
    }
    std::vector<uint32_t> absent;
    for (uint32_t r = 0; r < operation.last->part->num_ranks(); ++r) {
      if (!called.contains(r)) absent.push_back(r);
    }
    if (open && !absent.empty())
      operation.missing =
          absl::StrCat(absent.size() == 1 ? "rank " : "ranks ", absl::StrJoin(absent, ", "));
  }
  return operations;
}

// Draws parts, on a clock that begins at `origin`.
class Drawing {
 public:
  Drawing(int64_t origin, int64_t end, ChromeTrace& out) : origin_(origin), end_(end), out_(out) {}

  int64_t EndOf(const TimedPart& part) const {
    return part.part->ended_ns() == 0 ? end_ : part.At(part.part->ended_ns());
  }

  void Part(const TimedPart& part, const OperationParts& operation) {
    const RankTrace& said = *part.part;
    ChromeTrace::Event& whole = Slice(part, said.kind(), "operation", part.begin(), EndOf(part));
    ChromeTrace::Args& args = *whole.mutable_args();
    args.set_trace_id(absl::BytesToHexString(said.trace_id()));
    args.set_key(said.key());
    args.set_tenant(said.tenant());
    args.set_epoch(said.epoch());
    args.set_formation(said.formation());
    args.set_code(static_cast<uint32_t>(said.code()));
    args.set_open(said.ended_ns() == 0);
    args.set_staged_bytes(static_cast<double>(said.stage_bytes()));
    args.set_stands_for(said.stands_for());
    args.set_missing(operation.missing);
    args.set_client_trace_id(absl::BytesToHexString(said.client_trace_id()));
    args.set_client_span_id(absl::BytesToHexString(said.client_span_id()));
    if (operation.missing.empty()) {
      args.set_last(absl::StrCat("rank ", operation.last->part->rank()));
      args.set_waited_ms(static_cast<double>(operation.last->begin() - part.begin()) / 1e6);
    }
    Phases(part);
    if (operation.missing.empty() && &part != operation.last) Arrow(*operation.last, part);
  }

 private:
  static int64_t AnnouncedUntil(const TimedPart& part) {
    const RankTrace& said = *part.part;
    for (const int64_t ns :
         {said.queued_ns(), said.admitted_ns(), said.decided_ns(), said.ended_ns()}) {
      if (ns != 0) return part.At(ns);
    }
    return std::numeric_limits<int64_t>::min();
  }

  // From one step to the next that the rank has come to.
  void Phases(const TimedPart& part) {
    const RankTrace& said = *part.part;
    const std::pair<const char*, int64_t> steps[] = {
        {"announce", said.announced_ns()}, {"admit", said.queued_ns()},
        {"copy", said.admitted_ns()},      {"publish", said.published_ns()},
        {"pull", said.decided_ns()},       {"release", said.pulled_ns()}};
    for (size_t i = 0; i < std::size(steps); ++i) {
      if (steps[i].second == 0) continue;
      int64_t until = EndOf(part);
      for (size_t j = i + 1; j < std::size(steps); ++j) {
        if (steps[j].second == 0) continue;
        until = part.At(steps[j].second);
        break;
      }
      Slice(part, steps[i].first, "phase", part.At(steps[i].second), until);
    }
  }

  void Arrow(const TimedPart& from, const TimedPart& to) {
    const int64_t freed = AnnouncedUntil(to);
    if (freed < from.begin()) return;
    const std::string id = absl::StrCat(++num_arrows_);
    for (const bool begins : {true, false}) {
      const TimedPart& part = begins ? from : to;
      ChromeTrace::Event& event =
          Event("last to call", "operation", part, begins ? from.begin() : freed);
      event.set_ph(begins ? "s" : "f");
      event.set_id(id);
      if (!begins) event.set_bp("e");
    }
  }

  ChromeTrace::Event& Slice(const TimedPart& part, const std::string& name, const char* category,
                            int64_t begin, int64_t end) {
    ChromeTrace::Event& event = Event(name, category, part, begin);
    event.set_ph("X");
    event.set_dur(std::max(static_cast<double>(end - begin) / 1e3, kShortestUs));
    return event;
  }

  ChromeTrace::Event& Event(const std::string& name, const char* category, const TimedPart& part,
                            int64_t at) {
    ChromeTrace::Event& event = *out_.add_traceevents();
    event.set_name(name);
    event.set_cat(category);
    event.set_ts(static_cast<double>(at - origin_) / 1e3 + kFirstUs);
    event.set_pid(part.process);
    event.set_tid(part.thread);
    return event;
  }

  const int64_t origin_;
  const int64_t end_;
  ChromeTrace& out_;
  uint64_t num_arrows_ = 0;
};

std::vector<TimedPart> Collect(const GetTraceResponse& traces, const Clocks& clocks,
                               ChromeTrace& out) {
  std::vector<TimedPart> parts;
  uint32_t process = 0;
  for (const NodeTrace& trace : traces.traces()) {
    ++process;
    ChromeTrace::Event name = Metadata("process_name", process, 0);
    name.mutable_args()->set_name(absl::StrCat("node ", trace.node(), ", worker ", trace.worker()));
    *out.add_traceevents() = std::move(name);
    for (const RankTrace& part : trace.page().ranks())
      parts.push_back({&part, process, clocks.shifts.at(trace.node())});
  }
  std::stable_sort(parts.begin(), parts.end(),
                   [](const TimedPart& a, const TimedPart& b) { return a.begin() < b.begin(); });
  return parts;
}

int64_t LatestOf(const TimedPart& part) {
  const RankTrace& said = *part.part;
  int64_t latest = part.begin();
  for (const int64_t ns : {said.queued_ns(), said.admitted_ns(), said.published_ns(),
                           said.decided_ns(), said.pulled_ns(), said.ended_ns()}) {
    latest = std::max(latest, part.At(ns));
  }
  return latest;
}

// What is open goes on until the moment at which its worker was asked.
int64_t EndOf(const GetTraceResponse& traces, const Clocks& clocks,
              const std::vector<TimedPart>& parts) {
  int64_t end = parts.empty() ? 0 : parts.front().begin();
  for (const TimedPart& part : parts) end = std::max(end, LatestOf(part));
  for (const NodeTrace& trace : traces.traces())
    end = std::max(end, trace.monotonic_ns() + clocks.shifts.at(trace.node()));
  return end;
}

}  // namespace

ChromeTrace MakeChromeTrace(const GetTraceResponse& traces, const std::string& group) {
  ChromeTrace out;
  out.set_displaytimeunit("ms");
  ChromeTrace::OtherData& other = *out.mutable_otherdata();
  other.set_group(group);
  const Clocks clocks = MakeClocks(traces);
  for (const ChromeTrace::Clock& clock : clocks.shown) *other.add_clocks() = clock;
  uint64_t num_lost = 0;
  uint32_t stands_for = 1;
  for (const NodeTrace& trace : traces.traces()) {
    num_lost += trace.page().num_lost();
    for (const RankTrace& part : trace.page().ranks())
      stands_for = std::max(stands_for, part.stands_for());
  }
  other.set_num_lost(static_cast<double>(num_lost));
  other.set_stands_for(stands_for);
  *other.mutable_unanswered() = traces.unanswered();

  std::vector<TimedPart> parts = Collect(traces, clocks, out);
  if (parts.empty()) return out;
  other.set_zero_unix_ns(parts.front().begin() + clocks.epoch_ns -
                         static_cast<int64_t>(kFirstUs * 1000));
  Drawing drawing(parts.front().begin(), EndOf(traces, clocks, parts), out);
  Threads threads;
  for (TimedPart& part : parts) part.thread = threads.Place(part, drawing.EndOf(part), out);
  const std::map<std::string, OperationParts> operations = Group(parts);
  for (const TimedPart& part : parts) drawing.Part(part, operations.at(part.part->trace_id()));
  return out;
}

std::string ChromeTraceJson(const ChromeTrace& trace) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string text;
  // Fails only for strings that are no UTF-8, which proto3 refuses when parsing.
  (void)google::protobuf::util::MessageToJsonString(trace, &text, options);
  return text + "\n";
}

void AddTraces(const GetTraceResponse& page, GetTraceResponse& all) {
  for (const NodeTrace& trace : page.traces()) {
    const auto same = std::find_if(
        all.mutable_traces()->begin(), all.mutable_traces()->end(), [&](const NodeTrace& one) {
          return one.node() == trace.node() && one.worker() == trace.worker() &&
                 one.worker_incarnation() == trace.worker_incarnation();
        });
    if (same == all.mutable_traces()->end()) {
      *all.add_traces() = trace;
      continue;
    }
    const bool better =
        trace.has_clock() &&
        (!same->has_clock() || trace.clock().round_trip_ns() <= same->clock().round_trip_ns());
    if (better) *same->mutable_clock() = trace.clock();
    same->set_monotonic_ns(trace.monotonic_ns());
    same->set_unix_ns(trace.unix_ns());
    same->mutable_page()->set_num_lost(same->page().num_lost() + trace.page().num_lost());
    same->mutable_page()->set_next(trace.page().next());
    same->mutable_page()->set_more(trace.page().more());
    same->mutable_page()->mutable_ranks()->MergeFrom(trace.page().ranks());
  }
  *all.mutable_unanswered() = page.unanswered();
}

}  // namespace epd::cli
