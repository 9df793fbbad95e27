// Metrics, and the page for people, over HTTP: the one door of epd that is not gRPC, for scrapers and browsers speak no
// other.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "daemon/metrics/figures_cache.h"
#include "daemon/node/settings/settings.h"
#include "proto/machine/thread.h"

namespace httplib {
class Server;
}

namespace epd {

struct MetricsAccess;

// Reads snapshots and changes nothing. Serves on threads of its own, a bounded number of connections at a time, each for
// one request; who comes in excess waits in the kernel's queue.
//   GET /              the page, which shows the third
//   GET /metrics       the text of node_metrics.h
//   GET /figures.json  {"age_seconds": ..., "late": ..., "figures": GetFiguresResponse}
class MetricsServer {
 public:
  explicit MetricsServer(FiguresCache::Ask ask);
  ~MetricsServer();

  // Does nothing without metrics_listen. `before`: where the program that this one replaces served, or ""; a port that the
  // settings leave open is the same.
  //   as ReadMetricsAccess(), and
  //   FAILED_PRECONDITION  the address or the certificate cannot be used
  //   RESOURCE_EXHAUSTED   threads
  absl::Status Start(const Settings& settings, const std::string& before);
  // Ends connections within seconds. Before what `ask` asks ends.
  void Stop();

  // host:port; empty: it does not serve.
  const std::string& address() const { return address_; }

 private:
  class BoundedThreads;
  // What it serves, and to whom.
  void Route(const MetricsAccess& access);

  FiguresCache figures_;
  std::unique_ptr<httplib::Server> server_;
  std::string address_;
  std::unique_ptr<BoundedThreads> threads_;
  Thread listener_;
};

}  // namespace epd
