// Goal: a collector puts the spans of several nodes together, with each rank's phases in it, on one clock, and finds the program.
#include "daemon/otlp/spans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

namespace epd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

v1::NodeTrace Make(const std::string& node, uint32_t rank) {
  v1::NodeTrace trace;
  trace.set_node(node);
  trace.set_worker("cpu");
  trace.set_monotonic_ns(1'000);
  trace.set_unix_ns(5'000'001'000);
  v1::RankTrace& part = *trace.mutable_page()->add_ranks();
  part.set_trace_id("0123456789abcdef");
  part.set_group("g");
  part.set_rank(rank);
  part.set_kind("dispatch");
  part.set_key("name=x");
  part.set_announced_ns(100);
  part.set_queued_ns(200);
  part.set_admitted_ns(250);
  part.set_published_ns(300);
  part.set_decided_ns(400);
  part.set_pulled_ns(500);
  part.set_ended_ns(600);
  return trace;
}

std::map<std::string, otlp::Span> SpansOf(const v1::NodeTrace& trace) {
  std::map<std::string, otlp::Span> spans;
  otlp::ExportTraceServiceRequest request;
  MakeSpans(trace, "9", request);
  for (const otlp::Span& span : request.resource_spans(0).scope_spans(0).spans())
    spans[span.name()] = span;
  return spans;
}

TEST(SpansTest, RanksOfAllNodesAreChildrenOfOneSpanOfOneTrace) {
  const std::map<std::string, otlp::Span> zero = SpansOf(Make("a", 0));
  const std::map<std::string, otlp::Span> one = SpansOf(Make("b", 1));
  const otlp::Span& whole = zero.at("dispatch");
  EXPECT_EQ(one.count("dispatch"), 0u) << "one node tells of it";
  EXPECT_EQ(whole.parent_span_id(), "");
  for (const otlp::Span* rank : {&zero.at("dispatch rank 0"), &one.at("dispatch rank 1")}) {
    EXPECT_EQ(rank->trace_id(), whole.trace_id());
    EXPECT_EQ(rank->parent_span_id(), whole.span_id());
    EXPECT_EQ(rank->start_time_unix_nano(), 5'000'000'100u);
    EXPECT_EQ(rank->end_time_unix_nano(), 5'000'000'600u);
    EXPECT_EQ(rank->status().code(), otlp::Status::STATUS_CODE_UNSET);
  }
  std::set<std::string> ids;
  for (const auto* spans : {&zero, &one}) {
    for (const auto& [name, span] : *spans) {
      EXPECT_EQ(span.span_id().size(), 8u);
      EXPECT_TRUE(ids.insert(span.span_id()).second) << name;
    }
  }
  EXPECT_THAT(ids, SizeIs(15));
}

TEST(SpansTest, PhasesAreChildrenOfTheirRankAndFollowEachOther) {
  std::map<std::string, otlp::Span> spans = SpansOf(Make("a", 1));
  const otlp::Span rank = spans.at("dispatch rank 1");
  uint64_t at = rank.start_time_unix_nano();
  for (const char* phase : {"announce", "admit", "copy", "publish", "pull", "release"}) {
    EXPECT_EQ(spans[phase].parent_span_id(), rank.span_id()) << phase;
    EXPECT_EQ(spans[phase].start_time_unix_nano(), at) << phase;
    at = spans[phase].end_time_unix_nano();
  }
  EXPECT_EQ(at, rank.end_time_unix_nano());
}

TEST(SpansTest, WhatIsOpenIsLeftForLaterAndWhatFailedSaysSo) {
  v1::NodeTrace trace = Make("a", 1);
  trace.mutable_page()->mutable_ranks(0)->clear_ended_ns();
  EXPECT_THAT(SpansOf(trace), IsEmpty());
  trace = Make("a", 1);
  trace.mutable_page()->mutable_ranks(0)->set_code(4);
  const otlp::Status status = SpansOf(trace).at("dispatch rank 1").status();
  EXPECT_EQ(status.code(), otlp::Status::STATUS_CODE_ERROR);
  EXPECT_EQ(status.message(), "DEADLINE_EXCEEDED");
}

TEST(SpansTest, TimesAreTheCoordinatorsWhereItsClockIsKnown) {
  v1::NodeTrace trace = Make("b", 1);
  trace.mutable_clock()->set_offset_ns(-40);
  trace.mutable_clock()->set_reference_epoch_ns(7'000'000'000);
  EXPECT_EQ(SpansOf(trace).at("dispatch rank 1").start_time_unix_nano(), 7'000'000'060u);
}

TEST(SpansTest, AnOperationThatStandsForOthersSaysForHowMany) {
  const auto said = [](uint32_t stands_for) {
    v1::NodeTrace trace = Make("a", 1);
    trace.mutable_page()->mutable_ranks(0)->set_stands_for(stands_for);
    const otlp::Span rank = SpansOf(trace).at("dispatch rank 1");
    for (const otlp::KeyValue& one : rank.attributes()) {
      if (one.key() == "epd.stands_for") return one.value().int_value();
    }
    return int64_t{0};
  };
  EXPECT_EQ(said(8), 8);
  EXPECT_EQ(said(1), 0) << "nothing was left out";
}

TEST(SpansTest, TheProgramsSpanIsALink) {
  v1::NodeTrace trace = Make("a", 1);
  EXPECT_THAT(SpansOf(trace).at("dispatch rank 1").links(), IsEmpty());
  trace.mutable_page()->mutable_ranks(0)->set_client_trace_id("fedcba9876543210");
  trace.mutable_page()->mutable_ranks(0)->set_client_span_id("76543210");
  const otlp::Span rank = SpansOf(trace).at("dispatch rank 1");
  ASSERT_THAT(rank.links(), SizeIs(1));
  EXPECT_EQ(rank.links(0).trace_id(), "fedcba9876543210");
  EXPECT_EQ(rank.links(0).span_id(), "76543210");
}

}  // namespace
}  // namespace epd
