// Goal: every metric is documented, its names are what Prometheus expects, and there are never too many series.
#include "daemon/metrics/metric_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "absl/strings/match.h"

namespace epd {
namespace {

TEST(MetricTableTest, TheDocumentationIsThatOfTheTable) {
  std::ifstream file("deploy/metrics.md");
  std::ostringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), MetricsDocument())
      << "bazel run //daemon/metrics:metrics_document -- $PWD/deploy/metrics.md";
}

TEST(MetricTableTest, AllFamiliesTogetherStayBelowTheLimit) {
  size_t most = 0;
  for (const MetricRow& row : MetricTable()) most += row.max_series;
  EXPECT_LE(most, kMaxSeries);
}

TEST(MetricTableTest, NamesAreUniqueAndEndWithTheirUnit) {
  std::set<std::string> names;
  for (const MetricRow& row : MetricTable()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_TRUE(absl::StartsWith(row.name, "epd_")) << row.name;
    EXPECT_EQ(absl::EndsWith(row.name, "_total"), row.kind == MetricKind::kCounter) << row.name;
    // A labelled family keeps one place for "other".
    EXPECT_GE(row.max_series, (row.labels.empty() ? 1 : 2) * SeriesOf(row)) << row.name;
  }
}

}  // namespace
}  // namespace epd
