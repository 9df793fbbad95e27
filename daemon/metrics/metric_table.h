// The metrics that there are: one table, from which the documentation is made.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace epd {

enum class MetricKind { kGauge, kCounter, kHistogram };

struct MetricRow {
  const char* name;
  MetricKind kind;
  std::vector<const char*> labels;
  size_t max_series;  // Label sets above it are folded into one whose labels are all "other".
  const char* meaning;
  const char* alert = "";                // The one of deploy/prometheus that uses it.
  absl::Span<const double> bounds = {};  // Of a histogram's buckets.
};

// What all rows together may have at most; the table is checked against it in a test.
inline constexpr size_t kMaxSeries = 10'000;

const std::vector<MetricRow>& MetricTable();

// Lines that one label set has in the text.
size_t SeriesOf(const MetricRow& row);

// deploy/metrics.md.
std::string MetricsDocument();

}  // namespace epd
