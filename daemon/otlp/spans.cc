#include "daemon/otlp/spans.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace epd {
namespace {

// Which span of an operation: the operation's own is 0; each rank has one, and one per phase.
constexpr uint64_t kSpansOfRank = 16;

std::string IdOfSpan(const std::string& trace_id, uint64_t which) {
  std::string id = trace_id.substr(trace_id.size() - std::min<size_t>(trace_id.size(), 8));
  for (size_t i = 0; i < id.size(); ++i) {
    const auto byte = static_cast<uint8_t>(which >> (8 * (id.size() - 1 - i)));
    id[i] = static_cast<char>(static_cast<uint8_t>(id[i]) ^ byte);
  }
  return id;
}

void Put(const char* key, const std::string& value,
         google::protobuf::RepeatedPtrField<otlp::KeyValue>& out) {
  if (value.empty()) return;
  otlp::KeyValue& added = *out.Add();
  added.set_key(key);
  added.mutable_value()->set_string_value(value);
}

void Put(const char* key, uint64_t value, google::protobuf::RepeatedPtrField<otlp::KeyValue>& out) {
  otlp::KeyValue& added = *out.Add();
  added.set_key(key);
  added.mutable_value()->set_int_value(static_cast<int64_t>(value));
}

class Maker {
 public:
  Maker(int64_t epoch_ns, otlp::ScopeSpans& out) : epoch_ns_(epoch_ns), out_(out) {}

  void Add(const v1::RankTrace& part) {
    if (part.ended_ns() == 0 || part.trace_id().empty()) return;
    const uint64_t first = kSpansOfRank * (uint64_t{part.rank()} + 1);
    if (part.rank() == 0)
      Describe(part, Make(part, 0, part.kind(), part.announced_ns(), part.ended_ns()));
    otlp::Span& rank = Make(part, first, absl::StrCat(part.kind(), " rank ", part.rank()),
                            part.announced_ns(), part.ended_ns());
    rank.set_parent_span_id(IdOfSpan(part.trace_id(), 0));
    Describe(part, rank);
    Put("epd.rank", part.rank(), *rank.mutable_attributes());
    Put("process.pid", static_cast<uint64_t>(part.pid()), *rank.mutable_attributes());
    Put("epd.staged_bytes", part.stage_bytes(), *rank.mutable_attributes());
    if (part.stands_for() > 1) Put("epd.stands_for", part.stands_for(), *rank.mutable_attributes());
    if (!part.client_trace_id().empty()) {
      otlp::Span::Link& link = *rank.add_links();
      link.set_trace_id(part.client_trace_id());
      link.set_span_id(part.client_span_id());
    }
    AddPhases(part, first);
  }

 private:
  void AddPhases(const v1::RankTrace& part, uint64_t first) {
    const std::pair<const char*, int64_t> steps[] = {{"announce", part.announced_ns()},
                                                     {"admit", part.queued_ns()},
                                                     {"copy", part.admitted_ns()},
                                                     {"publish", part.published_ns()},
                                                     {"pull", part.decided_ns()},
                                                     {"release", part.pulled_ns()},
                                                     {"", part.ended_ns()}};
    const std::pair<const char*, int64_t>* open = nullptr;
    uint64_t which = first;
    for (const auto& step : steps) {
      if (step.second == 0) continue;
      if (open != nullptr) {
        Make(part, ++which, open->first, open->second, step.second)
            .set_parent_span_id(IdOfSpan(part.trace_id(), first));
      }
      open = &step;
    }
  }

  otlp::Span& Make(const v1::RankTrace& part, uint64_t which, const std::string& name,
                   int64_t begin_ns, int64_t end_ns) {
    otlp::Span& span = *out_.add_spans();
    span.set_trace_id(part.trace_id());
    span.set_span_id(IdOfSpan(part.trace_id(), which));
    span.set_name(name);
    span.set_kind(otlp::Span::SPAN_KIND_INTERNAL);
    span.set_start_time_unix_nano(static_cast<uint64_t>(begin_ns + epoch_ns_));
    span.set_end_time_unix_nano(static_cast<uint64_t>(end_ns + epoch_ns_));
    return span;
  }

  static void Describe(const v1::RankTrace& part, otlp::Span& span) {
    auto& attributes = *span.mutable_attributes();
    Put("epd.group", part.group(), attributes);
    Put("epd.tenant", part.tenant(), attributes);
    Put("epd.key", part.key(), attributes);
    Put("epd.epoch", part.epoch(), attributes);
    Put("epd.formation", part.formation(), attributes);
    if (part.code() == 0) return;
    span.mutable_status()->set_code(otlp::Status::STATUS_CODE_ERROR);
    span.mutable_status()->set_message(
        absl::StatusCodeToString(static_cast<absl::StatusCode>(part.code())));
  }

  const int64_t epoch_ns_;
  otlp::ScopeSpans& out_;
};

}  // namespace

void MakeSpans(const v1::NodeTrace& trace, const std::string& version,
               otlp::ExportTraceServiceRequest& out) {
  otlp::ResourceSpans& spans = *out.add_resource_spans();
  auto& resource = *spans.mutable_resource()->mutable_attributes();
  Put("service.name", "epd", resource);
  Put("service.version", version, resource);
  Put("service.instance.id", trace.node(), resource);
  Put("host.name", trace.node(), resource);
  Put("epd.worker", trace.worker(), resource);
  int64_t epoch_ns = trace.unix_ns() - trace.monotonic_ns();
  if (trace.has_clock()) {
    epoch_ns = trace.clock().offset_ns() + trace.clock().reference_epoch_ns();
    Put("epd.clock.reference", trace.clock().reference(), resource);
    Put("epd.clock.round_trip_ns", trace.clock().round_trip_ns(), resource);
  }
  otlp::ScopeSpans& scope = *spans.add_scope_spans();
  scope.mutable_scope()->set_name("epd");
  scope.mutable_scope()->set_version(version);
  Maker maker(epoch_ns, scope);
  for (const v1::RankTrace& part : trace.page().ranks()) maker.Add(part);
}

}  // namespace epd
