#include "daemon/metrics/exposition.h"

#include <limits>
#include <utility>

#include "daemon/core/check.h"

namespace epd {
namespace {

prometheus::MetricType TypeOf(MetricKind kind) {
  switch (kind) {
    case MetricKind::kGauge:
      return prometheus::MetricType::Gauge;
    case MetricKind::kCounter:
      return prometheus::MetricType::Counter;
    case MetricKind::kHistogram:
      return prometheus::MetricType::Histogram;
  }
  return prometheus::MetricType::Untyped;
}

}  // namespace

Exposition::Exposition() {
  for (const MetricRow& row : MetricTable()) {
    by_name_[row.name] = families_.size();
    Family family{.row = &row, .out = {}, .index = {}};
    family.out.name = row.name;
    family.out.help = row.meaning;
    family.out.type = TypeOf(row.kind);
    families_.push_back(std::move(family));
  }
}

prometheus::ClientMetric& Exposition::Find(absl::string_view name, const Labels& labels) {
  const auto known = by_name_.find(name);
  EPD_CHECK(known != by_name_.end());
  Family& family = families_[known->second];
  const MetricRow& row = *family.row;
  EPD_CHECK(labels.size() == row.labels.size());
  const auto found = family.index.find(labels);
  if (found != family.index.end()) return family.out.metric[found->second];
  const Labels other(labels.size(), "other");
  // The last place is for those that have none.
  const bool full = (family.out.metric.size() + 2) * SeriesOf(row) > row.max_series;
  if (full && !labels.empty() && labels != other) {
    ++num_folded_;
    return Find(name, other);
  }
  num_series_ += SeriesOf(row);
  family.index[labels] = family.out.metric.size();
  prometheus::ClientMetric& metric = family.out.metric.emplace_back();
  for (size_t i = 0; i < labels.size(); ++i) metric.label.push_back({row.labels[i], labels[i]});
  return metric;
}

void Exposition::Add(absl::string_view name, const Labels& labels, double value) {
  prometheus::ClientMetric& metric = Find(name, labels);
  metric.gauge.value += value;  // Of the two, the text has the one of the family's type.
  metric.counter.value += value;
}

void Exposition::AddTimes(absl::string_view name, const Labels& labels,
                          absl::Span<const uint64_t> counts, double sum) {
  prometheus::ClientMetric::Histogram& histogram = Find(name, labels).histogram;
  const absl::Span<const double> bounds = families_[by_name_.at(name)].row->bounds;
  histogram.bucket.resize(bounds.size() + 1);
  histogram.sample_sum += sum;
  uint64_t below = 0;
  for (size_t i = 0; i <= bounds.size(); ++i) {
    below += i < counts.size() ? counts[i] : 0;
    histogram.bucket[i].upper_bound =
        i < bounds.size() ? bounds[i] : std::numeric_limits<double>::infinity();
    histogram.bucket[i].cumulative_count += below;
  }
  histogram.sample_count += below;
}

std::vector<prometheus::MetricFamily> Exposition::Take() {
  const size_t num_series = num_series_;
  Add("epd_series", {}, static_cast<double>(num_series));
  Add("epd_series_folded", {}, static_cast<double>(num_folded_));
  std::vector<prometheus::MetricFamily> filled;
  for (Family& family : families_) {
    if (!family.out.metric.empty()) filled.push_back(std::move(family.out));
  }
  return filled;
}

}  // namespace epd
