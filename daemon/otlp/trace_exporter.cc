#include "daemon/otlp/trace_exporter.h"

#include <google/protobuf/arena.h>
#include <grpcpp/grpcpp.h>

#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "daemon/core/backoff.h"
#include "daemon/observe/log.h"
#include "daemon/tls/address.h"

namespace epd {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(2);
constexpr absl::Duration kBetween = absl::Milliseconds(500);
// Of a collector that takes nothing. Workers stop keeping what nobody asks for; see kKeepForSeconds.
constexpr Backoff::Policy kRetries = {absl::Seconds(1), absl::Seconds(15), absl::InfiniteDuration(),
                                      Backoff::kTowardsOthers};
constexpr absl::Duration kCall = absl::Seconds(5);
// Workers go on for so long after this thread has asked last.
constexpr int64_t kKeepForSeconds = 30;

// OTLP's list of what may be sent again.
bool IsWorthARetry(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
    case grpc::StatusCode::ABORTED:
    case grpc::StatusCode::OUT_OF_RANGE:
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::DATA_LOSS:
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return true;
    default:
      return false;
  }
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeCredentials(const Settings& settings,
                                                                          bool tls) {
  if (!tls) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions options;
  if (!settings.otlp_ca.empty()) {
    std::ifstream file(settings.otlp_ca, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    options.pem_root_certs = text.str();
    if (!file || options.pem_root_certs.empty())
      return absl::NotFoundError(absl::StrCat("otlp_ca: cannot read '", settings.otlp_ca, "'"));
  }
  return grpc::SslCredentials(options);
}

}  // namespace

absl::Status TraceExporter::Start(const Settings& settings) {
  if (settings.otlp_endpoint.empty()) return absl::OkStatus();
  endpoint_ = settings.otlp_endpoint;
  absl::string_view address = endpoint_;
  const bool tls = absl::ConsumePrefix(&address, "https://");
  const bool scheme = tls || absl::ConsumePrefix(&address, "http://");
  if (!scheme || !IsHostPort(std::string(address), 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "otlp_endpoint: got '", endpoint_, "', expected http://host:port or https://host:port"));
  }
  if (!tls && !IsLoopback(HostOf(std::string(address))) && settings.insecure != "yes") {
    return absl::FailedPreconditionError(
        absl::StrCat("otlp_endpoint: got ", endpoint_,
                     ", which leaves this machine in the clear; expected https://, or, where the "
                     "whole network is trusted, insecure=yes"));
  }
  auto credentials = MakeCredentials(settings, tls);
  if (!credentials.ok()) return credentials.status();
  grpc::ChannelArguments arguments;
  arguments.SetInt("grpc.enable_http_proxy", 0);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2'000);
  collector_ = otlp::TraceService::NewStub(
      grpc::CreateCustomChannel(std::string(address), *credentials, arguments));
  const int error = StartThread(
      {"epd-traces"}, [this] { Run(); }, &thread_);
  if (error == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(WhyNoThread("epd-traces", error));
}

void TraceExporter::Stop() {
  if (!thread_.joinable()) return;
  {
    const absl::MutexLock lock(&mutex_);
    stopping_ = true;
    if (call_ != nullptr) call_->TryCancel();
  }
  thread_.join();
}

bool TraceExporter::Sleep(absl::Duration time) {
  const absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(&stopping_), time);
}

v1::LocalTrace TraceExporter::AskNode(const v1::GetTraceRequest& request) {
  struct Answer {
    absl::Mutex mutex;
    bool there ABSL_GUARDED_BY(mutex) = false;
    v1::LocalTrace said ABSL_GUARDED_BY(mutex);
  };
  const auto answer = std::make_shared<Answer>();
  const bool asked = ask_(request, [answer](v1::LocalTrace said) {
    const absl::MutexLock lock(&answer->mutex);
    answer->said = std::move(said);
    answer->there = true;
  });
  if (!asked) return {};
  const absl::MutexLock lock(&answer->mutex);
  answer->mutex.AwaitWithTimeout(absl::Condition(&answer->there), kPatience);
  return std::move(answer->said);
}

bool TraceExporter::SendOne(const v1::NodeTrace& trace) {
  google::protobuf::Arena arena;
  auto& request = *google::protobuf::Arena::CreateMessage<otlp::ExportTraceServiceRequest>(&arena);
  MakeSpans(trace, version_, request);
  grpc::ClientContext call;
  call.set_deadline(absl::ToChronoTime(absl::Now() + kCall));
  otlp::ExportTraceServiceResponse response;
  {
    const absl::MutexLock lock(&mutex_);
    if (stopping_) return false;
    call_ = &call;
  }
  const grpc::Status status = collector_->Export(&call, request, &response);
  {
    const absl::MutexLock lock(&mutex_);
    call_ = nullptr;
    if (stopping_) return false;
  }
  const bool again = !status.ok() && IsWorthARetry(status.error_code());
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  if (status.ok() && response.partial_success().rejected_spans() > 0) {
    result = absl::InvalidArgumentError(
        absl::StrCat("it refused ", response.partial_success().rejected_spans(),
                     " spans: ", response.partial_success().error_message()));
  }
  NoteResult(result);
  return !again;
}

void TraceExporter::NoteResult(const absl::Status& result) {
  if (result.code() == last_result_.code()) return;
  last_result_ = result;
  if (result.ok())
    return Log(LogLevel::kInfo, "collector takes traces", {{"otlp_endpoint", endpoint_}});
  Log(LogLevel::kWarn, "collector takes no traces",
      {{"otlp_endpoint", endpoint_}, {"why", result.ToString()}});
}

void TraceExporter::Run() {
  v1::GetTraceRequest request;
  request.mutable_keep_for()->set_seconds(kKeepForSeconds);
  Backoff retries(kRetries, static_cast<uint64_t>(absl::ToUnixNanos(absl::Now())));
  absl::Duration pause = absl::ZeroDuration();
  while (!Sleep(pause)) {
    pause = kBetween;
    bool refused = false;
    const v1::LocalTrace said = AskNode(request);
    for (const v1::NodeTrace& trace : said.traces()) {
      v1::TraceCursor* cursor = nullptr;
      for (v1::TraceCursor& known : *request.mutable_cursors()) {
        if (known.worker() == trace.worker()) cursor = &known;
      }
      if (trace.page().ranks_size() > 0) {
        if (!SendOne(trace)) {
          refused = true;
          continue;
        }
        retries.Reset();
      }
      if (trace.page().num_lost() > 0)
        Log(LogLevel::kWarn, "traces were lost before they could be sent",
            {{"worker", trace.worker()}, {"ranks_operations", trace.page().num_lost()}});
      if (cursor == nullptr) cursor = request.add_cursors();
      cursor->set_node(trace.node());
      cursor->set_worker(trace.worker());
      cursor->set_worker_incarnation(trace.worker_incarnation());
      cursor->set_next(trace.page().next());
      if (trace.page().more()) pause = absl::ZeroDuration();
    }
    if (refused) pause = retries.AfterFailure();
  }
}

}  // namespace epd
