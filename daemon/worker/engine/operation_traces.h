// What each rank did when in each operation, for `epctl trace` and collectors: kept only while somebody wants it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/core/ids.h"
#include "daemon/worker/engine/direct_outcome.h"
#include "daemon/worker/engine/operation.h"
#include "daemon/worker/engine/trace_sample.h"

namespace epd {

// The span of the user's program that its processes were started in (W3C Trace Context); all zeros: none.
struct ClientSpan {
  std::array<uint8_t, 16> trace{};
  std::array<uint8_t, 8> span{};
};

// How far a rank is, in the order of time. One that is skipped has no time: eager rows are neither queued nor admitted.
enum class TracePoint { kAnnounced, kQueued, kAdmitted, kPublished, kDecided, kPulled, kEnded };
inline constexpr size_t kTracePoints = static_cast<size_t>(TracePoint::kEnded) + 1;

// One rank's part in one operation.
struct RankTrace {
  GroupId group;
  Epoch epoch;
  Formation formation;
  Rank rank;
  int32_t pid = 0;
  OperationKey key;
  std::array<char, 64> name{};  // Cut off; zero-terminated.
  shm::Kind kind = shm::Kind::kPrepare;
  uint64_t stage_bytes = 0;
  ClientSpan client;
  std::array<absl::Time, kTracePoints> at;  // InfinitePast: it has not come there.
  absl::StatusCode code = absl::StatusCode::kOk;
  uint32_t stands_for = 1;  // Of so many operations this one was kept (trace_sample.h).
};

// 16 bytes, the same on every node, for they follow from what names the operation.
std::string TraceIdOf(const RankTrace& trace);

// Keeps the parts that are open, and a ring of those that have ended. While it is off it keeps nothing, has no memory and costs a
// comparison per part; what is open when it is switched on is given to it anew (Exchange::KeepTraces). Not thread-safe.
class OperationTraces {
 public:
  // A part's place; kNone: it is not kept.
  using Place = uint32_t;
  static constexpr Place kNone = 0;

  struct Limits {
    size_t ended = 65536;  // Some 15 MB.
    size_t open = 65536;
    uint64_t parts_per_second = 0;  // Above it operations are left out; 0: never.
  };
  struct Page {
    std::vector<RankTrace> ranks;
    uint64_t next = 0;
    uint64_t num_lost = 0;  // Ended behind `after`, and not kept any more.
    bool more = false;
  };

  OperationTraces() : OperationTraces(Limits()) {}
  explicit OperationTraces(const Limits& limits)
      : limits_(limits), sample_(limits.parts_per_second) {}

  // On until then, at least.
  void KeepUntil(absl::Time until) { until_ = std::max(until_, until); }
  // Off, if it is time.
  void Tick(absl::Time now);
  bool on() const { return until_ != absl::InfinitePast(); }

  void SetClientSpan(SessionId session, const ClientSpan& span) { clients_[session] = span; }
  void ForgetSession(SessionId session) { clients_.erase(session); }

  // `rank`, of this worker, has announced `operation` at `now`.
  Place Begin(const Operation& operation, uint32_t rank, const Announcement& said, absl::Time now) {
    return on() ? Keep(operation, rank, said, now, Sample(operation, now)) : kNone;
  }
  // The same of what is open when somebody asks: it is kept in any case.
  Place BeginOpen(const Operation& operation, uint32_t rank, const Announcement& said,
                  absl::Time announced) {
    return on() ? Keep(operation, rank, said, announced, 1) : kNone;
  }
  // The first time counts.
  void Reach(Place place, TracePoint point, absl::Time now) {
    if (place != kNone && At(place, point) == absl::InfinitePast()) At(place, point) = now;
  }
  // The place is free again.
  void End(Place place, absl::StatusCode code, absl::Time now) {
    if (place != kNone) Finish(place, code, now);
  }

  // A part that ranks have done without the worker, which hears of it at `now`: was never open here.
  void NoteDirect(const DirectOutcome& outcome, const Tenant& tenant, absl::Time now) {
    if (on()) AddDirect(outcome, tenant, now);
  }

  // Of `groups` (empty: of all), those that ended behind `after`, the oldest first; at most `max`.
  Page Read(const std::vector<GroupId>& groups, uint64_t after, size_t max) const;
  // Those that have not ended, at most `max`.
  std::vector<RankTrace> ReadOpen(const std::vector<GroupId>& groups, size_t max) const;

 private:
  uint32_t Sample(const Operation& operation, absl::Time now);
  // `stands_for`: as RankTrace's; 0: it is left out.
  Place Keep(const Operation& operation, uint32_t rank, const Announcement& said, absl::Time now,
             uint32_t stands_for);
  void Finish(Place place, absl::StatusCode code, absl::Time now);
  void AddDirect(const DirectOutcome& outcome, const Tenant& tenant, absl::Time now);
  // All but the times.
  RankTrace Describe(const Tenant& tenant, uint32_t rank, const OperationKey& key,
                     const Announcement& said) const;
  void Put(const RankTrace& ended);
  absl::Time& At(Place place, TracePoint point) {
    return open_[place - 1].at[static_cast<size_t>(point)];
  }

  const Limits limits_;
  TraceSample sample_;
  absl::Time until_ = absl::InfinitePast();
  std::map<SessionId, ClientSpan> clients_;
  std::vector<RankTrace> open_;  // By place - 1.
  std::vector<Place> free_;
  std::vector<RankTrace> ended_;  // A ring.
  uint64_t num_ended_ = 0;        // Number n is at n % limits_.ended; also of what was forgotten.
  uint64_t first_ = 0;            // Since it was switched on.
};

// "00-<32 hexadecimal digits>-<16>-<2>". All zeros for anything else: the environment is not epd's to judge.
ClientSpan ParseTraceparent(absl::string_view text);

}  // namespace epd
