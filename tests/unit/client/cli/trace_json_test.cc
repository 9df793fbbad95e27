// Goal: the trace that people open shows each operation of each rank with its phases in it, all nodes on one clock, and who came last.
#include "client/cli/printers/trace_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace epd::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

using Event = ChromeTrace::Event;
using epd::v1::GetTraceResponse;
using epd::v1::NodeTrace;
using epd::v1::RankTrace;

constexpr int64_t kMs = 1'000'000;

NodeTrace& AddNode(GetTraceResponse& traces, const std::string& name) {
  NodeTrace& node = *traces.add_traces();
  node.set_node(name);
  node.set_worker("cpu");
  node.set_worker_incarnation(1);
  return node;
}

// One that called at `at` ms and went through all steps, a millisecond each, from `admitted` on.
RankTrace& AddPart(NodeTrace& node, uint32_t rank, int64_t at, int64_t admitted,
                   const std::string& operation = "0123456789abcdef") {
  RankTrace& part = *node.mutable_page()->add_ranks();
  part.set_trace_id(operation);
  part.set_rank(rank);
  part.set_num_ranks(2);
  part.set_pid(100 + static_cast<int32_t>(rank));
  part.set_kind("dispatch");
  part.set_key("name=x execution=1");
  part.set_announced_ns(at * kMs);
  part.set_queued_ns(admitted * kMs);
  part.set_admitted_ns(admitted * kMs);
  part.set_published_ns((admitted + 1) * kMs);
  part.set_decided_ns((admitted + 2) * kMs);
  part.set_pulled_ns((admitted + 3) * kMs);
  part.set_ended_ns((admitted + 4) * kMs);
  return part;
}

std::vector<Event> Of(const ChromeTrace& trace, const std::string& category,
                      const std::string& phase = "X") {
  std::vector<Event> events;
  for (const Event& event : trace.traceevents()) {
    if (event.cat() == category && event.ph() == phase) events.push_back(event);
  }
  return events;
}

// Two nodes, whose clocks are 500 ms apart; rank 1 on the second one calls 30 ms after rank 0.
GetTraceResponse TwoNodes() {
  GetTraceResponse traces;
  NodeTrace& a = AddNode(traces, "a");
  a.set_is_reference(true);
  AddPart(a, 0, 1000, 1030);
  NodeTrace& b = AddNode(traces, "b");
  b.mutable_clock()->set_reference("a");
  b.mutable_clock()->set_offset_ns(500 * kMs);
  b.mutable_clock()->set_round_trip_ns(200'000);
  b.mutable_clock()->set_num_samples(4);
  AddPart(b, 1, 530, 530);
  return traces;
}

TEST(TraceJson, AnOperationHasASliceOfEachRankOnOneClock) {
  const ChromeTrace trace = MakeChromeTrace(TwoNodes(), "g");
  const std::vector<Event> slices = Of(trace, "operation");
  ASSERT_THAT(slices, SizeIs(2));
  EXPECT_DOUBLE_EQ(slices[0].ts(), 1);
  EXPECT_DOUBLE_EQ(slices[0].dur(), 34'000);
  EXPECT_DOUBLE_EQ(slices[1].ts(), 30'001);
  EXPECT_DOUBLE_EQ(slices[1].dur(), 4000);
  EXPECT_EQ(slices[0].args().trace_id(), slices[1].args().trace_id());
  EXPECT_EQ(slices[0].args().last(), "rank 1");
  EXPECT_DOUBLE_EQ(slices[0].args().waited_ms(), 30);
  EXPECT_DOUBLE_EQ(slices[1].args().waited_ms(), 0);
  EXPECT_NE(slices[0].pid(), slices[1].pid());
}

TEST(TraceJson, WhatStandsForOthersSaysForHowMany) {
  GetTraceResponse traces = TwoNodes();
  EXPECT_EQ(MakeChromeTrace(traces, "g").otherdata().stands_for(), 1u);
  traces.mutable_traces(1)->mutable_page()->mutable_ranks(0)->set_stands_for(4);
  const ChromeTrace trace = MakeChromeTrace(traces, "g");
  EXPECT_EQ(trace.otherdata().stands_for(), 4u);
  EXPECT_EQ(Of(trace, "operation")[1].args().stands_for(), 4u);
}

TEST(TraceJson, PhasesFollowEachOtherInsideTheirOperation) {
  const ChromeTrace trace = MakeChromeTrace(TwoNodes(), "g");
  const std::vector<Event> slices = Of(trace, "operation");
  std::map<uint32_t, std::vector<std::string>> names;
  std::map<uint32_t, double> ends;
  for (const Event& phase : Of(trace, "phase")) {
    const Event& slice = slices[phase.tid() == slices[0].tid() ? 0 : 1];
    names[phase.tid()].push_back(phase.name());
    const double before = ends.contains(phase.tid()) ? ends[phase.tid()] : slice.ts();
    EXPECT_NEAR(phase.ts(), before, 0.01) << phase.name();
    ends[phase.tid()] = phase.ts() + phase.dur();
  }
  ASSERT_THAT(names, SizeIs(2));
  for (const auto& [tid, phases] : names)
    EXPECT_THAT(phases, ElementsAre("announce", "admit", "copy", "publish", "pull", "release"));
  for (const Event& slice : slices) EXPECT_NEAR(ends[slice.tid()], slice.ts() + slice.dur(), 0.01);
}

TEST(TraceJson, AnArrowGoesFromWhoCameLastToWhoWaited) {
  const ChromeTrace trace = MakeChromeTrace(TwoNodes(), "g");
  const std::vector<Event> from = Of(trace, "operation", "s");
  const std::vector<Event> to = Of(trace, "operation", "f");
  ASSERT_THAT(from, SizeIs(1));
  ASSERT_THAT(to, SizeIs(1));
  EXPECT_EQ(from[0].id(), to[0].id());
  EXPECT_EQ(from[0].tid(), Of(trace, "operation")[1].tid());
  EXPECT_EQ(to[0].tid(), Of(trace, "operation")[0].tid());
  EXPECT_DOUBLE_EQ(to[0].ts(), 30'001);
}

TEST(TraceJson, WhatIsOpenGoesOnToTheEndAndNamesWhoIsMissing) {
  GetTraceResponse traces;
  NodeTrace& a = AddNode(traces, "a");
  a.set_monotonic_ns(5000 * kMs);
  RankTrace& part = *a.mutable_page()->add_ranks();
  part.set_trace_id("0123456789abcdef");
  part.set_rank(0);
  part.set_num_ranks(3);
  part.set_kind("prepare");
  part.set_announced_ns(1000 * kMs);
  const ChromeTrace trace = MakeChromeTrace(traces, "g");
  const std::vector<Event> slices = Of(trace, "operation");
  ASSERT_THAT(slices, SizeIs(1));
  EXPECT_TRUE(slices[0].args().open());
  EXPECT_DOUBLE_EQ(slices[0].dur(), 4'000'000);
  EXPECT_EQ(slices[0].args().missing(), "ranks 1, 2");
  EXPECT_EQ(slices[0].args().last(), "") << "nobody knows yet";
  ASSERT_THAT(Of(trace, "phase"), SizeIs(1));
  EXPECT_EQ(Of(trace, "phase")[0].name(), "announce");
  EXPECT_THAT(Of(trace, "operation", "s"), IsEmpty());
}

TEST(TraceJson, EagerRowsSkipTheStepsThatTheyDoNotHave) {
  GetTraceResponse traces;
  RankTrace& part = AddPart(AddNode(traces, "a"), 0, 10, 20);
  part.clear_queued_ns();
  part.clear_admitted_ns();
  part.clear_published_ns();
  std::vector<std::string> names;
  for (const Event& phase : Of(MakeChromeTrace(traces, "g"), "phase"))
    names.push_back(phase.name());
  EXPECT_THAT(names, ElementsAre("announce", "pull", "release"));
}

TEST(TraceJson, OperationsOfOneRankThatOverlapHaveThreadsOfTheirOwn) {
  GetTraceResponse traces;
  NodeTrace& a = AddNode(traces, "a");
  AddPart(a, 0, 10, 20, "first");
  AddPart(a, 0, 15, 21, "second");
  AddPart(a, 0, 40, 41, "third");
  const std::vector<Event> slices = Of(MakeChromeTrace(traces, "g"), "operation");
  ASSERT_THAT(slices, SizeIs(3));
  EXPECT_NE(slices[0].tid(), slices[1].tid());
  EXPECT_EQ(slices[0].tid(), slices[2].tid());
}

TEST(TraceJson, TheClocksAreShown) {
  GetTraceResponse traces = TwoNodes();
  NodeTrace& c = AddNode(traces, "c");
  c.set_unix_ns(9000 * kMs);
  c.set_monotonic_ns(1000 * kMs);
  const ChromeTrace trace = MakeChromeTrace(traces, "g");
  ASSERT_THAT(trace.otherdata().clocks(), SizeIs(3));
  EXPECT_EQ(trace.otherdata().clocks(0).by(), "reference");
  EXPECT_EQ(trace.otherdata().clocks(1).by(), "round trips");
  EXPECT_DOUBLE_EQ(trace.otherdata().clocks(1).offset_ms(), 500);
  EXPECT_DOUBLE_EQ(trace.otherdata().clocks(1).error_ms(), 0.1);
  EXPECT_EQ(trace.otherdata().clocks(2).by(), "wall clock");
  EXPECT_DOUBLE_EQ(trace.otherdata().clocks(2).offset_ms(), 8000);
}

TEST(TraceJson, TextsAreEscapedAndWhatIsEmptyIsLeftOut) {
  GetTraceResponse traces;
  RankTrace& part = AddPart(AddNode(traces, "a"), 0, 10, 20);
  part.set_key("name=\"quoted\"\n</script>");
  const std::string text = ChromeTraceJson(MakeChromeTrace(traces, "g"));
  EXPECT_THAT(text, HasSubstr("\\\"quoted\\\"\\n"));
  EXPECT_THAT(text, Not(HasSubstr("\n</script>")));
  EXPECT_THAT(text, Not(HasSubstr("client_trace_id")));
  EXPECT_THAT(text, HasSubstr("\"traceEvents\":["));
}

TEST(TraceJson, PagesAddUpAndTheBetterLookAtAClockStays) {
  GetTraceResponse all;
  GetTraceResponse page = TwoNodes();
  page.mutable_traces(1)->mutable_page()->set_num_lost(3);
  AddTraces(page, all);
  page.mutable_traces(1)->mutable_clock()->set_round_trip_ns(900'000);
  page.mutable_traces(1)->mutable_clock()->set_offset_ns(1);
  AddTraces(page, all);
  ASSERT_THAT(all.traces(), SizeIs(2));
  EXPECT_THAT(all.traces(1).page().ranks(), SizeIs(2));
  EXPECT_EQ(all.traces(1).page().num_lost(), 6u);
  EXPECT_EQ(all.traces(1).clock().offset_ns(), 500 * kMs);
  page.mutable_traces(1)->set_worker_incarnation(2);
  AddTraces(page, all);
  EXPECT_THAT(all.traces(), SizeIs(3)) << "another run of the worker";
}

}  // namespace
}  // namespace epd::cli
