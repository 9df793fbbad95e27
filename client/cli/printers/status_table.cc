#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/human.h"
#include "client/cli/printers/tables.h"
#include "client/cli/table.h"

namespace epd::cli {
namespace {

std::string CoordinatorText(const epd::v1::GetStatusResponse& status) {
  if (status.coordinator().empty()) return "this daemon";
  return absl::StrCat(status.coordinator(),
                      status.coordinator_connected() ? " (connected)" : " (NOT connected)");
}

std::string WorkersTable(const epd::v1::GetStatusResponse& status) {
  Table table({{"WORKER"},
               {"STATE"},
               {"PID", Align::kRight},
               {"UP", Align::kRight},
               {"RESTARTS", Align::kRight},
               {"BACKEND"},
               {"SIMD"},
               {"LAST EXIT"}});
  for (const epd::v1::Worker& worker : status.workers()) {
    table.AddRow(
        {worker.device(), EnumWord(epd::v1::WorkerState_Name(worker.state()), "WORKER_STATE_"),
         worker.pid() == 0 ? "" : absl::StrCat(worker.pid()),
         worker.has_up() ? HumanDuration(worker.up()) : "", absl::StrCat(worker.num_restarts()),
         worker.backend(), worker.simd(), worker.last_exit()});
  }
  return table.empty() ? "no workers\n" : table.ToString();
}

std::string TrafficTable(const epd::v1::GetStatusResponse& status) {
  Table table({{"ROWS TO AND FROM"}, {"SENT", Align::kRight}, {"RECEIVED", Align::kRight}});
  for (const epd::v1::NodeTraffic& one : status.traffic()) {
    table.AddRow({one.node(), HumanBytes(one.sent_bytes()), HumanBytes(one.received_bytes())});
  }
  return table.ToString();
}

}  // namespace

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
