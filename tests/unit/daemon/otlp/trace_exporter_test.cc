// Goal: every part of an operation reaches the collector once it is there, also when it was away; what it refuses for good does not hold
// the rest up; nothing leaves the machine in the clear unasked.
#include "daemon/otlp/trace_exporter.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/fakes/failing_threads.h"

namespace epd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kSoon = absl::Seconds(30);

// A collector that answers what it is told to, and remembers the ranks whose spans it took.
class FakeCollector final : public otlp::TraceService::Service {
 public:
  FakeCollector() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeCollector() override { server_->Shutdown(); }

  grpc::Status Export(grpc::ServerContext*, const otlp::ExportTraceServiceRequest* request,
                      otlp::ExportTraceServiceResponse*) override {
    const absl::MutexLock lock(&mutex_);
    ++num_calls_;
    if (!answers_.empty()) {
      const grpc::Status answer = answers_.front();
      answers_.erase(answers_.begin());
      if (!answer.ok()) return answer;
    }
    for (const otlp::Span& span : request->resource_spans(0).scope_spans(0).spans()) {
      if (span.name().find(" rank ") != std::string::npos) taken_.push_back(span.name());
    }
    return grpc::Status::OK;
  }
  void AnswerNext(std::vector<grpc::Status> answers) {
    const absl::MutexLock lock(&mutex_);
    answers_ = std::move(answers);
  }
  std::vector<std::string> WaitForTaken(size_t num) {
    const absl::MutexLock lock(&mutex_);
    const auto enough = [&]()
                            ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return taken_.size() >= num; };
    mutex_.AwaitWithTimeout(absl::Condition(&enough), kSoon);
    return taken_;
  }
  Settings MakeSettings() const {
    Settings settings;
    settings.otlp_endpoint = absl::StrCat("http://127.0.0.1:", port_);
    settings.insecure = "no";
    return settings;
  }

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  absl::Mutex mutex_;
  std::vector<grpc::Status> answers_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> taken_ ABSL_GUARDED_BY(mutex_);
  int num_calls_ ABSL_GUARDED_BY(mutex_) = 0;
};

// One worker with three parts of operations, two of which go into a page.
bool AskThree(const v1::GetTraceRequest& request, const TraceExporter::Done& done) {
  constexpr uint64_t kParts = 3;
  constexpr uint64_t kPage = 2;
  v1::LocalTrace said;
  v1::NodeTrace& trace = *said.add_traces();
  trace.set_node("a");
  trace.set_worker("cpu");
  trace.set_worker_incarnation(9);
  uint64_t next = request.cursors_size() == 0 ? 0 : request.cursors(0).next();
  const uint64_t end = std::min(next + kPage, kParts);
  for (; next < end; ++next) {
    v1::RankTrace& part = *trace.mutable_page()->add_ranks();
    part.set_trace_id("0123456789abcdef");
    part.set_kind("prepare");
    part.set_rank(static_cast<uint32_t>(next) + 1);
    part.set_announced_ns(1);
    part.set_ended_ns(2);
  }
  trace.mutable_page()->set_next(next);
  trace.mutable_page()->set_more(next < kParts);
  done(said);
  return true;
}

TEST(TraceExporterTest, EveryPartArrivesPageByPage) {
  FakeCollector collector;
  TraceExporter exporter(AskThree, "9");
  ASSERT_TRUE(exporter.Start(collector.MakeSettings()).ok());
  EXPECT_THAT(collector.WaitForTaken(3),
              ElementsAre("prepare rank 1", "prepare rank 2", "prepare rank 3"));
}

TEST(TraceExporterTest, WhatCouldNotBeSentIsSentAgain) {
  FakeCollector collector;
  collector.AnswerNext({grpc::Status(grpc::StatusCode::UNAVAILABLE, "later")});
  TraceExporter exporter(AskThree, "9");
  ASSERT_TRUE(exporter.Start(collector.MakeSettings()).ok());
  EXPECT_THAT(collector.WaitForTaken(3),
              ElementsAre("prepare rank 1", "prepare rank 2", "prepare rank 3"));
}

TEST(TraceExporterTest, WhatIsRefusedForGoodIsLeftOut) {
  FakeCollector collector;
  collector.AnswerNext({grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no")});
  TraceExporter exporter(AskThree, "9");
  ASSERT_TRUE(exporter.Start(collector.MakeSettings()).ok());
  EXPECT_THAT(collector.WaitForTaken(1), ElementsAre("prepare rank 3"));
}

TEST(TraceExporterTest, WithoutAnEndpointNobodyIsAsked) {
  TraceExporter exporter(
      [](const v1::GetTraceRequest&, const TraceExporter::Done&) {
        ADD_FAILURE() << "asked";
        return false;
      },
      "9");
  EXPECT_TRUE(exporter.Start(Settings()).ok());
}

TEST(TraceExporterTest, PlainTextStaysOnTheMachineUnlessSaidOtherwise) {
  Settings settings;
  settings.otlp_endpoint = "http://10.0.0.9:4317";
  settings.insecure = "no";
  TraceExporter exporter(AskThree, "9");
  const absl::Status refused = exporter.Start(settings);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("expected https://"));
  for (const char* bad : {"10.0.0.9:4317", "ftp://10.0.0.9:4317", "https://10.0.0.9"}) {
    settings.otlp_endpoint = bad;
    EXPECT_EQ(exporter.Start(settings).code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  settings.otlp_endpoint = "https://10.0.0.9:4317";
  settings.otlp_ca = "/nonexistent/ca.pem";
  EXPECT_EQ(exporter.Start(settings).code(), absl::StatusCode::kNotFound);
}

TEST(TraceExporterTest, ACollectorThatIsNotThereDoesNotKeepEpdFromEnding) {
  Settings settings;
  settings.otlp_endpoint = "http://127.0.0.1:1";
  TraceExporter exporter(AskThree, "9");
  ASSERT_TRUE(exporter.Start(settings).ok());
  exporter.Stop();
}

TEST(TraceExporterTest, AThreadThatCannotBeHadIsAnErrorOfTheStart) {
  FakeCollector collector;
  TraceExporter traces([](const v1::GetTraceRequest&, const TraceExporter::Done&) { return false; },
                       "1");
  epd::testing::g_threads_left = 0;
  const absl::Status started = traces.Start(collector.MakeSettings());
  epd::testing::g_threads_left = -1;
  EXPECT_EQ(started.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(started.message()), HasSubstr("no thread 'epd-traces'"));
}

}  // namespace
}  // namespace epd
