// Goal: a scraper reads what the node counted, whatever clients call their groups, and never more series than there is room
// for.
#include "daemon/metrics/node_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "daemon/core/time_buckets.h"
#include "daemon/metrics/metric_table.h"

namespace epd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

v1::Group& AddGroup(v1::GetFiguresResponse& figures, const std::string& name, uint32_t num_ranks) {
  v1::Group& group = *figures.add_groups();
  group.mutable_spec()->set_name(name);
  group.mutable_spec()->set_num_ranks(num_ranks);
  group.set_state(v1::GROUP_STATE_READY);
  for (uint32_t r = 0; r < num_ranks; ++r) group.add_ranks()->set_node(r < 2 ? "a" : "b");
  return group;
}

std::string Text(const v1::GetFiguresResponse& figures) {
  return MetricsText(figures, absl::Milliseconds(250));
}

TEST(NodeMetricsTest, ANodeWithoutGroupsSaysWhoItIsAndHowItIs) {
  v1::GetFiguresResponse figures;
  figures.mutable_status()->set_node("n0");
  figures.mutable_status()->set_version("1.2");
  figures.mutable_status()->set_health(v1::HEALTH_DEGRADED);
  EXPECT_THAT(
      Text(figures),
      AllOf(HasSubstr("epd_build_info{version=\"1.2\",node=\"n0\"} 1\n"),
            HasSubstr("epd_health{state=\"degraded\"} 1\n"),
            HasSubstr("epd_health{state=\"ok\"} 0\n"), HasSubstr("epd_groups{state=\"ready\"} 0\n"),
            HasSubstr("# TYPE epd_sessions gauge\n"), HasSubstr("epd_figures_age_seconds 0.25\n"),
            Not(HasSubstr("epd_certificate_left_seconds"))));
}

TEST(NodeMetricsTest, WhoLeadsSinceWhenAndWhatWaitsForOtherNodesIsTold) {
  v1::GetFiguresResponse figures;
  v1::GetStatusResponse& status = *figures.mutable_status();
  EXPECT_THAT(Text(figures),
              AllOf(HasSubstr("epd_coordinator_leads 0\n"), Not(HasSubstr("epd_coordinator_term")),
                    Not(HasSubstr("epd_coordinator_lease_left_seconds"))));
  status.set_coordinates(true);
  status.mutable_lease()->set_holder("n0");
  status.mutable_lease()->set_term(71);
  status.mutable_lease()->mutable_left()->set_seconds(2);
  v1::NodeTraffic& traffic = *status.add_traffic();
  traffic.set_node("n1");
  traffic.set_queued_messages(3);
  traffic.set_queued_rows(2);
  EXPECT_THAT(Text(figures),
              AllOf(HasSubstr("epd_coordinator_leads 1\n"),
                    HasSubstr("epd_coordinator_term{coordinator=\"n0\"} 71\n"),
                    HasSubstr("epd_coordinator_lease_left_seconds 2\n"),
                    HasSubstr("epd_wire_queue_length{node=\"n1\",of=\"messages\"} 3\n"),
                    HasSubstr("epd_wire_queue_length{node=\"n1\",of=\"rows\"} 2\n")));
}

TEST(NodeMetricsTest, RowsThatPadAreCountedBesideThoseThatAreDropped) {
  v1::GetFiguresResponse figures;
  AddGroup(figures, "g", 1);
  auto& ranks = *figures.add_ranks();
  ranks.set_group("g");
  ranks.set_num_ranks(1);
  ranks.mutable_figures()->set_padded_rows(7);
  ranks.mutable_figures()->set_dropped_rows(5);
  ranks.mutable_figures()->set_estimated_prepares(3);
  EXPECT_THAT(Text(figures),
              AllOf(HasSubstr("epd_estimated_prepares_total 3\n"),
                    HasSubstr("epd_group_padded_rows_total{group=\"g\",tenant=\"\"} 7\n"),
                    HasSubstr("epd_group_dropped_rows_total{group=\"g\",tenant=\"\"} 5\n")));
}

TEST(NodeMetricsTest, PhasesAreHistogramsWithCumulativeBuckets) {
  v1::GetFiguresResponse figures;
  auto& worker = *figures.add_workers();
  worker.set_worker("cpu");
  auto& restart = *worker.add_restarts();
  restart.set_cause("signal_9");
  restart.set_count(3);
  v1::KindFigures& kind = *worker.add_kinds();
  kind.set_kind("dispatch");
  auto& outcome = *kind.add_outcomes();
  outcome.set_code(8);
  outcome.set_num_operations(2);
  auto& phase = *kind.add_phases();
  phase.set_phase("copy");
  phase.set_seconds(1.5);
  for (size_t i = 0; i < kNumTimeBuckets; ++i) phase.add_counts(i == 4 ? 5 : 0);  // Up to 1 ms.
  const std::string labels = "worker=\"cpu\",kind=\"dispatch\",phase=\"copy\"";
  EXPECT_THAT(Text(figures),
              AllOf(HasSubstr(absl::StrCat("epd_operation_phase_seconds_bucket{", labels,
                                           ",le=\"0.0003\"} 0\n")),
                    HasSubstr(absl::StrCat("epd_operation_phase_seconds_bucket{", labels,
                                           ",le=\"0.001\"} 5\n")),
                    HasSubstr(absl::StrCat("epd_operation_phase_seconds_bucket{", labels,
                                           ",le=\"+Inf\"} 5\n")),
                    HasSubstr(absl::StrCat("epd_operation_phase_seconds_sum{", labels, "} 1.5\n")),
                    HasSubstr("epd_operations_total{worker=\"cpu\",kind=\"dispatch\",outcome="
                              "\"RESOURCE_EXHAUSTED\"} 2\n"),
                    HasSubstr("epd_worker_restarts_total{worker=\"cpu\",cause=\"signal_9\"} 3\n")));
}

TEST(NodeMetricsTest, WhatMayBeCountedIsThereBeforeItHappens) {
  v1::GetFiguresResponse figures;
  figures.add_workers()->set_worker("cpu");
  AddGroup(figures, "g", 1);
  EXPECT_THAT(
      Text(figures),
      AllOf(HasSubstr("epd_group_transitions_total{event=\"rank_lost\",to=\"degraded\"} 0\n"),
            HasSubstr("epd_group_transitions_total{event=\"worker_lost\",to=\"re_forming\"} 0\n"),
            HasSubstr("epd_group_dropped_rows_total{group=\"g\",tenant=\"\"} 0\n"),
            HasSubstr("epd_worker_restarts_total{worker=\"cpu\",cause=\"signal_9\"} 0\n"),
            HasSubstr("epd_operations_total{worker=\"cpu\",kind=\"combine\",outcome="
                      "\"ABORTED\"} 0\n")));
}

TEST(NodeMetricsTest, RanksAreBlamedForTheWaitsThatTheyCaused) {
  v1::GetFiguresResponse figures;
  AddGroup(figures, "g", 3);
  auto& ranks = *figures.add_ranks();
  ranks.set_group("g");
  ranks.set_num_ranks(3);
  for (const float waited : {0.F, 0.F, 2.F, 0.F, 0.F, 1.5F, 0.25F, 0.F, 0.F})
    ranks.mutable_figures()->add_waited_seconds(waited);
  for (const uint64_t routes : {1, 2, 4, 8, 16, 32, 64, 128, 256})
    ranks.mutable_figures()->add_routes(routes);
  const auto line = [](const char* name, const char* label, const char* value) {
    return absl::StrCat(name, "{group=\"g\",tenant=\"\",", label, "} ", value, "\n");
  };
  const char* waited = "epd_rank_waited_for_seconds_total";
  const char* routes = "epd_group_routes_total";
  EXPECT_THAT(Text(figures), AllOf(HasSubstr(line(waited, "rank=\"0\"", "0.25")),
                                   HasSubstr(line(waited, "rank=\"1\"", "0")),
                                   HasSubstr(line(waited, "rank=\"2\"", "3.5")),
                                   HasSubstr(line(routes, "to=\"rank\"", "273")),
                                   HasSubstr(line(routes, "to=\"node\"", "10")),
                                   HasSubstr(line(routes, "to=\"other_node\"", "228"))));
}

TEST(NodeMetricsTest, WaitsAreAHistogramOfTheRankThatCausedThemAlsoWhereThereAreTooManyPairs) {
  v1::GetFiguresResponse figures;
  AddGroup(figures, "g", 500);
  auto& ranks = *figures.add_ranks();
  ranks.set_group("g");
  ranks.set_num_ranks(500);
  for (int rank = 0; rank < 500; ++rank) {
    v1::RankFigures::Waits& waits = *ranks.mutable_figures()->add_waits();
    waits.set_seconds(rank == 1 ? 2.5 : 0.25);
    for (size_t i = 0; i < kNumWaitBuckets; ++i) waits.add_counts(i == 3 ? 4 : 0);  // To 0.1 s.
  }
  const std::string text = Text(figures);
  const auto line = [](const char* part, const char* rank, const char* le, const char* value) {
    return absl::StrCat("epd_rank_wait_seconds_", part, "{group=\"g\",tenant=\"\",rank=\"", rank,
                        "\"", le, "} ", value, "\n");
  };
  EXPECT_THAT(text,
              AllOf(HasSubstr(line("sum", "1", "", "2.5")), HasSubstr(line("count", "1", "", "4")),
                    HasSubstr(line("bucket", "1", ",le=\"0.01\"", "0")),
                    HasSubstr(line("bucket", "1", ",le=\"0.1\"", "4")),
                    HasSubstr(line("bucket", "1", ",le=\"+Inf\"", "4"))));
  EXPECT_THAT(text, AllOf(HasSubstr(line("count", "78", "", "4")),
                          Not(HasSubstr(line("count", "79", "", "4"))),
                          HasSubstr("epd_rank_wait_seconds_count{group=\"other\",tenant=\"other\","
                                    "rank=\"other\"} 1684\n")));
}

TEST(NodeMetricsTest, ARankThatOthersWaitForNowIsNamed) {
  v1::GetFiguresResponse figures;
  v1::Group& group = AddGroup(figures, "g", 2);
  group.mutable_ranks(1)->set_rank(1);
  group.mutable_ranks(1)->set_phase("absent_in_announce");
  group.mutable_ranks(1)->mutable_phase_age()->set_seconds(42);
  EXPECT_THAT(Text(figures),
              HasSubstr("epd_rank_awaited_seconds{group=\"g\",tenant=\"\",rank=\"1\"} 42\n"));
}

TEST(NodeMetricsTest, NamesOfClientsCannotAddLines) {
  v1::GetFiguresResponse figures;
  AddGroup(figures, "a\"} 1\nepd_sessions 99\\", 1);
  EXPECT_THAT(Text(figures), HasSubstr("{group=\"a\\\"} 1\\nepd_sessions 99\\\\\",tenant=\"\"}"));
  EXPECT_THAT(Text(figures), Not(HasSubstr("\nepd_sessions 99")));
}

TEST(NodeMetricsTest, WhatHasNoRoomIsAddedUpAndShown) {
  v1::GetFiguresResponse figures;
  for (int g = 0; g < 1024; ++g) {
    v1::Group& group = AddGroup(figures, absl::StrCat("g", g), 64);
    group.set_num_operations(2);
    for (int e = 0; e < 256; ++e) group.add_expert_routes(1);
  }
  const std::string text = Text(figures);
  // With two series each there is room for 119 groups and a half.
  const char* rest =
      "epd_group_operations_total{group=\"other\",tenant=\"other\",outcome=\"other\"} 1808\n";
  EXPECT_TRUE(absl::StrContains(text, rest));
  size_t lines = 0;
  for (const auto line : absl::StrSplit(text, '\n'))
    lines += !line.empty() && line[0] != '#' ? 1 : 0;
  EXPECT_LE(lines, kMaxSeries);
  EXPECT_TRUE(absl::StrContains(text, absl::StrCat("epd_series ", lines - 2, "\n")));
  EXPECT_FALSE(absl::StrContains(text, "epd_series_folded 0\n"));
}

}  // namespace
}  // namespace epd
