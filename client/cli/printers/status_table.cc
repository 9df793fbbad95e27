#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/human.h"
#include "client/cli/printers/tables.h"
#include "client/cli/table.h"

namespace epd::cli {
namespace {

std::string CoordinatorText(const epd::v1::GetStatusResponse& status) {
  // A daemon before `coordinates` was there says that it is connected to itself.
  const bool is_own = status.coordinates() || status.coordinator_connected();
  if (status.coordinator().empty()) return is_own ? "this daemon" : "none (see the problems below)";
  return absl::StrCat(status.coordinator(),
                      status.coordinator_connected() ? " (connected)" : " (NOT connected)");
}

std::string WorkersTable(const epd::v1::GetStatusResponse& status) {
  using W = epd::v1::Worker;
  const Fields<W> fields = {
      {"WORKER", [](const W& w) { return w.device(); }},
      {"STATE",
       [](const W& w) { return EnumWord(epd::v1::WorkerState_Name(w.state()), "WORKER_STATE_"); }},
      {"PID", [](const W& w) { return NonZero(w.pid()); }, Align::kRight},
      {"UP", [](const W& w) { return w.has_up() ? HumanDuration(w.up()) : ""; }, Align::kRight},
      {"RESTARTS", [](const W& w) { return absl::StrCat(w.num_restarts()); }, Align::kRight},
      {"BACKEND", [](const W& w) { return w.backend(); }},
      {"SIMD", [](const W& w) { return w.simd(); }},
      {"LAST EXIT", [](const W& w) { return w.last_exit(); }},
  };
  return MakeTable(status.workers(), fields, "no workers\n");
}

std::string TrafficTable(const epd::v1::GetStatusResponse& status) {
  using N = epd::v1::NodeTraffic;
  const Fields<N> fields = {
      {"ROWS TO AND FROM", [](const N& n) { return n.node(); }},
      {"SENT", [](const N& n) { return HumanBytes(n.sent_bytes()); }, Align::kRight},
      {"RECEIVED", [](const N& n) { return HumanBytes(n.received_bytes()); }, Align::kRight},
      {"WAITING", [](const N& n) { return absl::StrCat(n.queued_messages() + n.queued_rows()); },
       Align::kRight},
  };
  return MakeTable(status.traffic(), fields, "");
}

}  // namespace

std::string CertificateText(const epd::v1::GetStatusResponse& status) {
  if (!status.has_certificate()) return "none";
  const absl::Duration left = ToDuration(status.certificate().left());
  return left > absl::ZeroDuration() ? HumanDuration(left) : "ENDED";
}

std::string GpuText(const epd::v1::Gpu& gpu) {
  if (gpu.name().empty() && gpu.problem().empty()) return "";
  if (gpu.name().empty())
    return absl::StrCat("gpu: ", gpu.ordinal(), " cannot be used for backend=cuda: ", gpu.problem(),
                        "\n");
  return absl::StrCat("gpu: ", gpu.ordinal(), " (", gpu.name(), "), ",
                      HumanBytes(gpu.staging_bytes()), " of ", HumanBytes(gpu.memory_bytes()),
                      " reserved for staging, shared by ", gpu.sharing(),
                      "; XLA_PYTHON_CLIENT_MEM_FRACTION of one client: ",
                      absl::StrFormat("%.2f", gpu.client_memory_fraction()), "\n");
}

std::string StatusTable(const epd::v1::GetStatusResponse& status) {
  std::string text = AlignedPairs({
      {"node", status.node()},
      {"health", absl::StrCat(EnumWord(epd::v1::Health_Name(status.health()), "HEALTH_"),
                              status.draining() ? ", draining" : "")},
      {"epd",
       absl::StrCat(status.version(), ", pid ", status.pid(), ", up ", HumanDuration(status.up()))},
      {"groups", absl::StrCat(status.num_groups(), " (", status.num_ready_groups(), " ready)")},
      {"sessions", absl::StrCat(status.num_sessions())},
      {"staging", absl::StrCat(HumanBytes(status.pool_committed_bytes()), " committed, ",
                               HumanBytes(status.pool_peak_bytes()), " at most so far, of ",
                               HumanBytes(status.pool_bytes()))},
      {"coordinator", CoordinatorText(status)},
      {"certificate", status.has_certificate() ? absl::StrCat("ends in ", CertificateText(status))
                                               : "none (links are not TLS)"},
  });
  for (const epd::v1::Worker& worker : status.workers()) text += GpuText(worker.gpu());
  for (const std::string& problem : status.problems())
    absl::StrAppend(&text, "problem: ", problem, "\n");
  absl::StrAppend(&text, "\n", WorkersTable(status));
  if (status.traffic_size() > 0) absl::StrAppend(&text, "\n", TrafficTable(status));
  if (status.worker_snapshot_stale()) {
    text +=
        "A worker does not answer (stopped, or the machine is overloaded): its figures are the "
        "last known.\n";
  }
  return text;
}

}  // namespace epd::cli
