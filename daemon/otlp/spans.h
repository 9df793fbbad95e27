// What ranks did in operations as OpenTelemetry's spans.
#pragma once

#include <string>

#include "proto/epd/v1/trace.pb.h"
#include "proto/otlp/trace_service.pb.h"

namespace epd {

namespace otlp = opentelemetry::proto::collector::trace::v1;

// Pure. Of each part that has ended a span, "dispatch rank 3", with a span per phase in it; of rank 0 also the operation's own, the
// parent of all ranks' spans. Ids follow from the operation's, so the spans of several nodes fit together although none has heard of
// the other. A program's own span (TRACEPARENT) is a link of its ranks' spans. Times are the wall clock of the coordinator's node where
// its clock is known, else of this one. Adds to `out`, which is best on an arena: a span has some twenty parts.
void MakeSpans(const v1::NodeTrace& trace, const std::string& version,
               otlp::ExportTraceServiceRequest& out);

}  // namespace epd
