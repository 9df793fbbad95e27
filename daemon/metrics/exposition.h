// Figures as families of Prometheus, with a bound on how many series there are.
#pragma once

#include <prometheus/metric_family.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "daemon/metrics/metric_table.h"

namespace epd {

// Label sets that come when their family is full are added up as one, "other". `name` is one of MetricTable().
class Exposition {
 public:
  using Labels = std::vector<std::string>;  // Values, in the order of the row's names.

  Exposition();

  // Adds `value` to the gauge or counter of these labels.
  void Add(absl::string_view name, const Labels& labels, double value);
  // Adds observations to a histogram: `counts` by the row's bounds, `sum` in seconds.
  void AddTimes(absl::string_view name, const Labels& labels, absl::Span<const uint64_t> counts,
                double sum);

  // In the order of the table, without families that have no series; epd_series and epd_series_folded are filled in. Once.
  std::vector<prometheus::MetricFamily> Take();

 private:
  struct Family {
    const MetricRow* row = nullptr;
    prometheus::MetricFamily out;
    std::map<Labels, size_t> index;  // In out.metric.
  };
  prometheus::ClientMetric& Find(absl::string_view name, const Labels& labels);

  std::vector<Family> families_;
  std::map<absl::string_view, size_t> by_name_;
  size_t num_series_ = 0;
  size_t num_folded_ = 0;
};

}  // namespace epd
