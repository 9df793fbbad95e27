#include "daemon/node/settings/settings_table.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "daemon/core/worker_name.h"
#include "daemon/tls/address.h"
#include "proto/epd/v1/segment.h"

namespace epd {
namespace {

bool ParseBytes(const std::string& text, uint64_t* bytes) {
  const size_t end = text.find_first_not_of("0123456789");
  const std::string digits = text.substr(0, end);
  std::string unit = end == std::string::npos ? "" : text.substr(end);
  absl::StripAsciiWhitespace(&unit);
  static constexpr struct {
    const char* name;
    int shift;
  } kUnits[] = {{"", 0}, {"b", 0}, {"kib", 10}, {"mib", 20}, {"gib", 30}, {"tib", 40}};
  uint64_t number;
  if (!absl::SimpleAtoi(digits, &number)) return false;
  for (const auto& known : kUnits) {
    if (absl::AsciiStrToLower(unit) != known.name) continue;
    if (number > (UINT64_MAX >> known.shift)) return false;
    *bytes = number << known.shift;
    return true;
  }
  return false;
}

// "10s", "1m30s", or a plain number of seconds.
bool ParseDuration(const std::string& text, absl::Duration* duration) {
  double seconds;
  if (absl::ParseDuration(text, duration)) return true;
  if (!absl::SimpleAtod(text, &seconds)) return false;
  *duration = absl::Seconds(seconds);
  return true;
}

bool ParseDevices(const std::string& text, CudaDevices* devices) {
  *devices = {};
  devices->on_demand = text == "auto";
  if (text == "auto" || text == "none") return true;
  for (const absl::string_view one : absl::StrSplit(text, ',')) {
    const std::optional<WorkerName> name = ParseWorkerName(absl::StrCat("cuda:", one));
    if (!name.has_value()) return false;
    devices->ordinals.insert(name->cuda_device);
  }
  return true;
}

// ---- the kinds of values ----

SettingKind Text(std::string Settings::*field) {
  return {"text", [=](const std::string& value, Settings& s) { return s.*field = value, true; }};
}

SettingKind Address(std::string Settings::*field, uint32_t min_port, uint32_t max_port = 65535) {
  return {absl::StrCat("host:port with a port from ", min_port, " to ", max_port, ", or nothing"),
          [=](const std::string& value, Settings& s) {
            s.*field = value;
            return value.empty() || IsHostPort(value, min_port, max_port);
          }};
}

SettingKind OneOf(std::string Settings::*field, const std::vector<std::string>& choices) {
  return {absl::StrCat("one of ", absl::StrJoin(choices, ", ")),
          [=](const std::string& value, Settings& s) {
            s.*field = value;
            return absl::c_linear_search(choices, value);
          }};
}

SettingKind Count(uint64_t Settings::*field, uint64_t min, uint64_t max) {
  return {absl::StrCat("a number from ", min, " to ", max),
          [=](const std::string& value, Settings& s) {
            return absl::SimpleAtoi(value, &(s.*field)) && s.*field >= min && s.*field <= max;
          }};
}

SettingKind Bytes(uint64_t Settings::*field, uint64_t min) {
  return {absl::StrCat("bytes such as 2GiB, 512MiB or 1048576, at least ", min),
          [=](const std::string& value, Settings& s) {
            return ParseBytes(value, &(s.*field)) && s.*field >= min;
          }};
}

SettingKind Time(absl::Duration Settings::*field, absl::Duration min) {
  return {absl::StrCat("a duration such as 250ms, 10s or 5m (a plain number is seconds), at least ",
                       absl::FormatDuration(min)),
          [=](const std::string& value, Settings& s) {
            return ParseDuration(value, &(s.*field)) && s.*field >= min &&
                   s.*field <= absl::Hours(24 * 365);
          }};
}

SettingKind Devices(CudaDevices Settings::*field) {
  return {absl::StrCat("auto, none, or ordinals from 0 to ", kMaxCudaDevice, " such as 0,1"),
          [=](const std::string& value, Settings& s) { return ParseDevices(value, &(s.*field)); }};
}

// ---- the rows ----

std::vector<SettingRow> PlaceSettings(const MachineFacts& facts) {
  using S = Settings;
  return {
      {"socket", Text(&S::socket), facts.runtime_dir + "/epd.sock",
       "Unix socket that local clients attach to; at most 107 bytes."},
      {"grpc_socket", Text(&S::grpc_socket), "",
       "Unix socket of the gRPC API; mode 0600, so only epd's user and root. Empty: beside "
       "`socket`, with -grpc before its ending."},
      {"listen", Address(&S::listen, 0), "",
       "host:port of the gRPC API on TCP, also for other nodes when this epd coordinates. Port 0: "
       "any free one. Empty: no TCP. Without tls_ca it has no authentication, so only loopback and "
       "private addresses are taken."},
      {"node", Text(&S::node), facts.host_name, "This node's name; unique in the cluster."},
  };
}

std::vector<SettingRow> WorkSettings(const MachineFacts& facts) {
  using S = Settings;
  const std::string quarter =
      absl::StrCat(std::max<uint64_t>(facts.memory_bytes / 4 >> 20, 64), "MiB");
  return {
      {"worker", Text(&S::worker), facts.binary_dir + "/epd-worker",
       "The epd-worker binary to start."},
      {"staging_bytes", Bytes(&S::staging_bytes, 1 << 20), quarter,
       "Budget of staging memory of this node. Default: a quarter of the memory (of the machine or "
       "of the cgroup)."},
      {"executor", OneOf(&S::executor, {"auto", "client", "worker"}), "auto",
       "Who moves rows in groups that do not say: clients themselves, or the worker. auto: client "
       "on cpu."},
      {"simd", OneOf(&S::simd, {"auto", "scalar", "avx2", "avx512"}), "auto",
       "Vector instructions of the worker; every level gives the same bits."},
      {"spin", Time(&S::spin, absl::ZeroDuration()), "50us",
       "How long the worker looks for work before it sleeps. More is faster on idle cores, and "
       "burns them."},
      {"nccl_library", Text(&S::nccl_library), "",
       "Path of libnccl.so.2, for unique ids. Empty: the usual places."},
  };
}

std::vector<SettingRow> CudaSettings() {
  using S = Settings;
  return {
      {"cuda_staging_bytes", Bytes(&S::cuda_staging_bytes, 0), "2GiB",
       "Device memory that each GPU's worker reserves at its start for groups with backend=cuda; "
       "epctl status says what is left for clients. 0: no such groups."},
      {"staging", OneOf(&S::staging, {"auto", "vmm", "ipc"}), "auto",
       "How clients get at device memory: vmm (a descriptor, which keeps the memory alive), ipc (a "
       "CUDA IPC handle). auto: vmm where the driver has it, else ipc."},
      {"cuda_devices", Devices(&S::cuda_devices), "auto",
       "GPUs that groups with backend=cuda are served on, each by a worker process of its own. A "
       "list of ordinals, 0,1: their workers start with epd, so that staging is reserved before "
       "clients take the memory. none. auto: a GPU's worker starts, and reserves, when the first "
       "rank on it joins."},
      {"cuda_limit", Time(&S::cuda_limit, absl::Milliseconds(1)), "30s",
       "How long one operation's work on the GPU may take before the worker is replaced."},
      {"max_num_sms", Count(&S::max_num_sms, 0, 1024), "0",
       "SMs that the kernels which move rows may occupy, so that others run beside them. 0: all."},
  };
}

std::vector<SettingRow> ClusterSettings() {
  using S = Settings;
  return {
      {"coordinator", Address(&S::coordinator, 1), "",
       "host:port of the epd that coordinates the cluster. Empty, or this node itself: this epd "
       "coordinates."},
      {"peers", Text(&S::peers), "",
       "host:port,host:port,... of all nodes, or slurm:port for those of the Slurm job: the first "
       "coordinates. Instead of `coordinator`; the same on all nodes."},
      {"rendezvous", Text(&S::rendezvous), "",
       "etcd://host:port[,host:port...][/cluster]: the nodes choose a coordinator among themselves "
       "and replace one that dies. Instead of `coordinator`."},
      {"advertise", Address(&S::advertise, 1), "",
       "With `rendezvous`: host:port at which other nodes reach `listen`. Empty: as `listen`; "
       "without `listen` this node never coordinates."},
      {"wire_listen", Address(&S::wire_listen, 0, 65534), "",
       "host:port at which the CPU's worker takes rows of other nodes' workers; they are told this "
       "host. Port 0: any two free ones. Else large rows come in at the port behind it, and the "
       "worker of GPU N has the ports 2N+2 and 2N+3 behind it. Empty: in a cluster the host of "
       "`listen` (of `advertise`, where that is 0.0.0.0), or else the address with which this node "
       "reaches its coordinator; alone none. TLS and private addresses as for `listen`."},
      {"lease", Time(&S::lease, absl::Seconds(2)), "3s",
       "With `rendezvous`: a coordinator that cannot reach etcd for so long is replaced."},
      {"etcd_ca", Text(&S::etcd_ca), "",
       "PEM file of the certificates that sign etcd's members: TLS to etcd. Empty: plain."},
      {"etcd_cert", Text(&S::etcd_cert), "",
       "PEM file of the certificate with which this node calls etcd, where etcd wants one "
       "(--client-cert-auth). With etcd_key."},
      {"etcd_key", Text(&S::etcd_key), "", "PEM file of the private key of etcd_cert."},
      {"etcd_user", Text(&S::etcd_user), "",
       "User of etcd that may read and write below /epd/. With etcd_password_file, and etcd_ca: no "
       "password is sent in the clear."},
      {"etcd_password_file", Text(&S::etcd_password_file), "",
       "File with the password of etcd_user in its first line. Read at each login."},
      {"heartbeat", Time(&S::heartbeat, absl::Milliseconds(100)), "3s",
       "How often a node says that it lives; the same on all nodes. The members of a group learn "
       "within three of them that a node is lost."},
      {"node_silence", Time(&S::node_silence, absl::ZeroDuration()), "0",
       "As the coordinator: a node that says nothing for so long is lost, and its sessions with "
       "it. 0: two and a half heartbeats."},
      {"tls_ca", Text(&S::tls_ca), "",
       "PEM file of the certificates that sign this cluster's nodes. With tls_cert and tls_key all "
       "links between epds are mutual TLS. Empty: plain."},
      {"tls_cert", Text(&S::tls_cert), "",
       "PEM file of this node's certificate, for server and client use; its subjectAltName names "
       "the host of `listen`. Read again when it changes."},
      {"tls_key", Text(&S::tls_key), "", "PEM file of the private key of tls_cert."},
      {"plain_unique_ids", OneOf(&S::plain_unique_ids, {"refuse", "allow"}), "refuse",
       "Whether NCCL unique ids may cross a link that is neither TLS nor loopback. Whoever reads "
       "one can enter the communicator."},
      {"start_grace", Time(&S::start_grace, absl::ZeroDuration()), "2s",
       "As the coordinator (with --listen): after its start it only hears for so long what groups "
       "there are already."},
  };
}

std::vector<SettingRow> DeadlineSettings() {
  using S = Settings;
  const absl::Duration tick = absl::Milliseconds(1);
  return {
      {"warn_after", Time(&S::warn_after, tick), "20s",
       "A living but absent rank is named in the log."},
      {"absent", Time(&S::absent, tick), "10m", "A living but absent rank fails the operation."},
      {"undecided", Time(&S::undecided, tick), "30s",
       "From an operation's admission to its outcome."},
      {"form", Time(&S::form, tick), "5m", "Forming or re-forming a group."},
      {"drain_deadline", Time(&S::drain_deadline, absl::ZeroDuration()), "30s",
       "After SIGTERM: how long open operations may take before they are cut off. A second SIGTERM "
       "ends at once.",
       true},
      {"idle_exit", Time(&S::idle_exit, absl::ZeroDuration()), "0",
       "End this long after the last session (or after the start); 0: never. For private daemons."},
  };
}

std::vector<SettingRow> SupervisionSettings() {
  using S = Settings;
  const absl::Duration tick = absl::Milliseconds(1);
  return {
      {"worker_backoff_min", Time(&S::worker_backoff_min, tick), "100ms",
       "Wait before a dead worker is replaced; doubles with each death up to worker_backoff_max, "
       "and starts again after a healthy minute."},
      {"worker_backoff_max", Time(&S::worker_backoff_max, tick), "30s", "See worker_backoff_min."},
      {"worker_heartbeat", Time(&S::worker_heartbeat, tick), "1s",
       "How often the worker is asked for figures."},
      {"worker_stuck", Time(&S::worker_stuck, tick), "30s",
       "A worker that has not answered for so long is killed and replaced."},
  };
}

std::vector<SettingRow> LimitAndLogSettings() {
  using S = Settings;
  return {
      {"max_sessions", Count(&S::max_sessions, 1, shm::kMaxSessions), "1024",
       "Clients attached at the same time.", true},
      {"max_groups", Count(&S::max_groups, 1, 65536), "1024", "Groups at the same time.", true},
      {"log_level", OneOf(&S::log_level, {"debug", "info", "warn", "error"}), "info",
       "The least severe line kept.", true},
      {"log_file", Text(&S::log_file), "", "Where the log goes. Empty: standard error.", true},
  };
}

}  // namespace

std::vector<SettingRow> SettingTable(const MachineFacts& facts) {
  std::vector<SettingRow> table;
  for (const std::vector<SettingRow>& part :
       std::vector{PlaceSettings(facts), WorkSettings(facts), CudaSettings(), ClusterSettings(),
                   DeadlineSettings(), SupervisionSettings(), LimitAndLogSettings()}) {
    table.insert(table.end(), part.begin(), part.end());
  }
  return table;
}

}  // namespace epd
