// Sends what this node's ranks do to an OpenTelemetry collector.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/node/settings/settings.h"
#include "daemon/otlp/spans.h"
#include "proto/epd/v1/node.pb.h"
#include "proto/machine/thread.h"
#include "proto/otlp/trace_service.grpc.pb.h"

namespace epd {

// Has a thread of its own, which asks the workers for what has ended since, page by page, and sends it. What could not be sent is asked
// for again, as long as workers keep it; what a collector refuses for good is left out, and counted in the log. Each node sends its own
// ranks' spans.
class TraceExporter {
 public:
  // Any thread: `done` gets the answer soon, or never. False: nobody answers any more.
  using Done = std::function<void(v1::LocalTrace)>;
  using Ask = std::function<bool(const v1::GetTraceRequest&, Done)>;

  TraceExporter(Ask ask, std::string version)
      : ask_(std::move(ask)), version_(std::move(version)) {}
  ~TraceExporter() { Stop(); }

  // Does nothing without otlp_endpoint. A collector that is not there is no error: it may come.
  //   INVALID_ARGUMENT     it is no http://host:port nor https://host:port
  //   FAILED_PRECONDITION  http:// leaves this machine, and `insecure` is no
  //   NOT_FOUND            otlp_ca cannot be read
  //   RESOURCE_EXHAUSTED   a thread
  absl::Status Start(const Settings& settings);
  // Ends within a second. Before what `ask` asks ends.
  void Stop();

 private:
  void Run();
  // False: it is to be asked for again.
  bool SendOne(const v1::NodeTrace& trace);
  // What the node says within kPatience.
  v1::LocalTrace AskNode(const v1::GetTraceRequest& request);
  // True: it is time to end.
  bool Sleep(absl::Duration time);
  void NoteResult(const absl::Status& result);

  const Ask ask_;
  const std::string version_;
  std::string endpoint_;
  std::unique_ptr<otlp::TraceService::Stub> collector_;
  absl::Status last_result_;  // Logged once.
  Thread thread_;

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* call_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace epd
