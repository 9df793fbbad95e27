#include "daemon/worker/engine/operation_traces.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_split.h"
#include "daemon/worker/engine/mixed_hash.h"
#include "daemon/worker/engine/tenant.h"
#include "proto/epd/v1/text.h"

namespace epd {
namespace {

bool Wanted(const RankTrace& trace, const std::vector<GroupId>& groups) {
  return groups.empty() || absl::c_linear_search(groups, trace.group);
}

bool IsLowerHex(absl::string_view text, size_t digits) {
  return text.size() == digits && absl::c_all_of(text, [](char c) {
           return absl::ascii_isdigit(static_cast<unsigned char>(c)) || (c >= 'a' && c <= 'f');
         });
}

uint64_t WordOf(const uint8_t* bytes) {
  uint64_t word = 0;
  for (int i = 0; i < 8; ++i) word = word << 8 | bytes[i];
  return word;
}

// Of a trace id.
constexpr uint64_t kFirstHalf = 0x65706420;
constexpr uint64_t kSecondHalf = 0x74726163;

uint64_t HashOf(uint64_t seed, GroupId group, Epoch epoch, Formation formation,
                const OperationKey& key) {
  uint64_t hash = seed;
  for (const uint64_t word :
       {group.value, epoch.value, formation.value, WordOf(key.execution.program.data()),
        WordOf(key.execution.program.data() + 8), key.execution.number, uint64_t{key.ordinal},
        uint64_t{key.occurrence}, uint64_t{key.named}}) {
    hash = Mixed(hash, word);
  }
  return hash;
}

// By the last bits of the trace id, as OpenTelemetry's TraceIdRatioBased.
uint64_t SampleHash(const TenantStart& start, const OperationKey& key) {
  return HashOf(kSecondHalf, start.group, start.epoch, start.formation, key);
}

}  // namespace

std::string TraceIdOf(const RankTrace& trace) {
  std::string id;
  for (const uint64_t seed : {kFirstHalf, kSecondHalf}) {
    const uint64_t hash = HashOf(seed, trace.group, trace.epoch, trace.formation, trace.key);
    for (int shift = 56; shift >= 0; shift -= 8) id.push_back(static_cast<char>(hash >> shift));
  }
  return id;
}

void OperationTraces::Tick(absl::Time now) {
  if (!on() || now < until_) return;
  until_ = absl::InfinitePast();
  ended_ = {};
  first_ = num_ended_;
}

uint32_t OperationTraces::Sample(const Operation& operation, absl::Time now) {
  return sample_.Take(SampleHash(operation.tenant->start, operation.key), now);
}

OperationTraces::Place OperationTraces::Keep(const Operation& operation, uint32_t rank,
                                             const Announcement& said, absl::Time now,
                                             uint32_t stands_for) {
  if (now >= until_) {
    Tick(now);
    return kNone;
  }
  if (stands_for == 0) return kNone;
  if (free_.empty()) {
    if (open_.size() >= limits_.open) return kNone;
    open_.emplace_back();
    free_.push_back(static_cast<Place>(open_.size()));
  }
  const Place place = free_.back();
  free_.pop_back();
  RankTrace& trace = open_[place - 1];
  trace = Describe(*operation.tenant, rank, operation.key, said);
  trace.stands_for = stands_for;
  trace.at[static_cast<size_t>(TracePoint::kAnnounced)] = now;
  text::Cut(operation.name, trace.name.size() - 1).copy(trace.name.data(), trace.name.size() - 1);
  return place;
}

RankTrace OperationTraces::Describe(const Tenant& tenant, uint32_t rank, const OperationKey& key,
                                    const Announcement& said) const {
  const auto client = clients_.find(tenant.sessions[rank]);
  RankTrace trace{.group = tenant.start.group,
                  .epoch = tenant.start.epoch,
                  .formation = tenant.start.formation,
                  .rank = Rank(rank),
                  .pid = tenant.MemberOf(rank).pid,
                  .key = key,
                  .kind = said.kind,
                  .stage_bytes = said.stage_bytes,
                  .client = client == clients_.end() ? ClientSpan() : client->second,
                  .at = {}};
  trace.at.fill(absl::InfinitePast());
  return trace;
}

void OperationTraces::AddDirect(const DirectOutcome& outcome, const Tenant& tenant,
                                absl::Time now) {
  if (!outcome.ended || outcome.announced || outcome.rank.value >= tenant.num_ranks()) return;
  // The sample is everybody's: nobody's record takes it into the future, where the others' calls would never come.
  const uint32_t stands_for =
      sample_.Take(SampleHash(tenant.start, outcome.key), std::min(outcome.ended_at, now));
  if (stands_for == 0) return;
  RankTrace trace = Describe(tenant, outcome.rank.value, outcome.key, outcome.said);
  trace.stands_for = stands_for;
  text::Cut(outcome.name, trace.name.size() - 1).copy(trace.name.data(), trace.name.size() - 1);
  const auto at = [&](TracePoint point) -> absl::Time& {
    return trace.at[static_cast<size_t>(point)];
  };
  at(TracePoint::kAnnounced) = at(TracePoint::kPublished) = outcome.published_at;
  at(TracePoint::kDecided) = std::clamp(outcome.published_at + outcome.waited, outcome.published_at,
                                        std::max(outcome.published_at, outcome.ended_at));
  at(TracePoint::kPulled) = at(TracePoint::kEnded) = outcome.ended_at;
  Put(trace);
}

void OperationTraces::Finish(Place place, absl::StatusCode code, absl::Time now) {
  RankTrace& trace = open_[place - 1];
  trace.code = code;
  trace.at[static_cast<size_t>(TracePoint::kEnded)] = now;
  free_.push_back(place);
  if (on()) Put(trace);
}

void OperationTraces::Put(const RankTrace& ended) {
  if (ended_.size() < limits_.ended) {
    ended_.push_back(ended);
  } else {
    ended_[(num_ended_ - first_) % limits_.ended] = ended;
  }
  ++num_ended_;
}

OperationTraces::Page OperationTraces::Read(const std::vector<GroupId>& groups, uint64_t after,
                                            size_t max) const {
  const uint64_t oldest = num_ended_ - ended_.size();
  Page page{.ranks = {}, .next = std::max(after, oldest)};
  if (after > num_ended_) page.next = oldest;  // Of another run of this worker.
  if (after > 0 && after < oldest) page.num_lost = oldest - after;
  for (; page.next < num_ended_; ++page.next) {
    const RankTrace& trace = ended_[(page.next - first_) % limits_.ended];
    if (!Wanted(trace, groups)) continue;
    if (page.ranks.size() == max) {
      page.more = true;
      return page;
    }
    page.ranks.push_back(trace);
  }
  return page;
}

std::vector<RankTrace> OperationTraces::ReadOpen(const std::vector<GroupId>& groups,
                                                 size_t max) const {
  std::vector<bool> is_free(open_.size());
  for (const Place place : free_) is_free[place - 1] = true;
  std::vector<RankTrace> found;
  for (size_t i = 0; i < open_.size() && found.size() < max; ++i) {
    if (!is_free[i] && Wanted(open_[i], groups)) found.push_back(open_[i]);
  }
  return found;
}

ClientSpan ParseTraceparent(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '-');
  ClientSpan span;
  const bool well_formed = parts.size() >= 4 && IsLowerHex(parts[0], 2) && parts[0] != "ff" &&
                           IsLowerHex(parts[1], 32) && IsLowerHex(parts[2], 16) &&
                           IsLowerHex(parts[3], 2) && (parts.size() == 4 || parts[0] != "00");
  if (!well_formed) return span;
  const std::string trace = absl::HexStringToBytes(parts[1]);
  const std::string id = absl::HexStringToBytes(parts[2]);
  const auto is_zero = [](const std::string& bytes) {
    return absl::c_all_of(bytes, [](char c) { return c == 0; });
  };
  if (is_zero(trace) || is_zero(id)) return span;
  absl::c_copy(trace, span.trace.begin());
  absl::c_copy(id, span.span.begin());
  return span;
}

}  // namespace epd
