// Long because it is a table: a row for each setting, with its help.
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
#include "proto/epd/v1/limits.h"
#include "proto/epd/v1/segment.h"
#include "proto/epd/v1/text.h"

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

SettingKind Name(std::string Settings::*field) {
  return {absl::StrCat("1 to ", limits::kNameBytes, " bytes of printable ASCII"),
          [=](const std::string& value, Settings& s) {
            s.*field = value;
            return !value.empty() && value.size() <= limits::kNameBytes && text::IsPrintable(value);
          }};
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

SettingKind Ids(std::set<uint32_t> Settings::*field) {
  return {"numbers such as 1000,1001, or nothing", [=](const std::string& value, Settings& s) {
            (s.*field).clear();
            for (const absl::string_view one : absl::StrSplit(value, ',', absl::SkipEmpty())) {
              uint32_t id = 0;
              if (!absl::SimpleAtoi(one, &id)) return false;
              (s.*field).insert(id);
            }
            return true;
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
       "any free one. Empty: no TCP. Without tls_ca only a loopback address is taken, unless "
       "`insecure` says otherwise."},
      {"metrics_listen", Address(&S::metrics_listen, 0), "",
       "host:port of the metrics (/metrics) and the page (/) over HTTP. On loopback every "
       "user of this machine can read them, unless there is a metrics_token; other addresses take "
       "that and metrics_cert (or `insecure`). Port 0: any free one. Empty: none."},
      {"metrics_token", Text(&S::metrics_token), "",
       "File, mode 0600, of the bearer token, at least 16 characters, that whoever reads metrics "
       "must send. Read at the start. Empty: nobody is asked."},
      {"metrics_cert", Text(&S::metrics_cert), "",
       "PEM file of the certificate with which metrics are served over TLS. With metrics_key. "
       "Empty: plain."},
      {"metrics_key", Text(&S::metrics_key), "",
       "PEM file of the private key of metrics_cert, without a pass phrase."},
      {"otlp_endpoint", Text(&S::otlp_endpoint), "",
       "http://host:port or https://host:port of the OpenTelemetry collector that traces of "
       "operations are sent to (OTLP over gRPC, usually port 4317). Elsewhere than on loopback "
       "https, or `insecure`. Empty: nothing is traced unless somebody runs `epctl trace`."},
      {"otlp_ca", Text(&S::otlp_ca), "",
       "PEM file of who signs the collector's certificate. Empty: the system's."},
      {"attach_uids", Ids(&S::attach_uids), "",
       "Users that may attach beside epd's own and root, by number, if the folder of `socket` lets "
       "them in. A tenant's ranks on this node are all of one user; see max_staging_per_uid."},
      {"attach_gids", Ids(&S::attach_gids), "",
       "The same by group: a client's own or a supplementary one."},
      {"node", Name(&S::node), facts.host_name, "This node's name; unique in the cluster."},
  };
}

std::vector<SettingRow> WorkSettings(const MachineFacts& facts) {
  using S = Settings;
  const std::string staging = absl::StrCat(DefaultStagingBytes(facts.memory_bytes) >> 20, "MiB");
  return {
      {"worker", Text(&S::worker), facts.binary_dir + "/epd-worker",
       "The epd-worker binary to start."},
      {"staging_bytes", Bytes(&S::staging_bytes, 1 << 20), staging,
       "Budget of staging memory of this node. Default: a quarter of the memory (of the machine, "
       "or of the lowest limit of epd's control group and those above it), and at most half of "
       "what is left beside 128 MiB for epd, worker and clients."},
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
       "reaches its coordinator; alone none. TLS and `insecure` as for `listen`."},
      {"lease", Time(&S::lease, absl::Seconds(2)), "3s",
       "With `rendezvous`: a coordinator that cannot reach etcd for so long is replaced."},
      {"etcd_ca", Text(&S::etcd_ca), "",
       "PEM file of the certificates that sign etcd's members: TLS to etcd. Empty: plain."},
      {"etcd_cert", Text(&S::etcd_cert), "",
       "PEM file of the certificate with which this node calls etcd, where etcd wants one "
       "(--client-cert-auth). With etcd_key."},
      {"etcd_key", Text(&S::etcd_key), "",
       "PEM file of the private key of etcd_cert, without a pass phrase."},
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
      {"start_grace", Time(&S::start_grace, absl::ZeroDuration()), "2s",
       "As the coordinator (with --listen): after its start it only hears for so long what groups "
       "there are already."},
  };
}

std::vector<SettingRow> TrustSettings() {
  using S = Settings;
  return {
      {"tls_ca", Text(&S::tls_ca), "",
       "PEM file of the certificates that sign this cluster's nodes. With tls_cert and tls_key all "
       "links between epds are mutual TLS. Empty: plain."},
      {"tls_cert", Text(&S::tls_cert), "",
       "PEM file of this node's certificate, for server and client use; its subjectAltName names "
       "the host of `listen`. Read again when it changes."},
      {"tls_key", Text(&S::tls_key), "",
       "PEM file of the private key of tls_cert, without a pass phrase."},
      {"operators", Text(&S::operators), "",
       "With tls_ca: NAME,... of certificates (common name or subjectAltName; * stands for any "
       "characters) that may create, drain and close groups over TCP. Others of this cluster may "
       "look. On the Unix socket epd's user and root may."},
      {"nodes", Text(&S::nodes), "",
       "With tls_ca: NAME,... of certificates that may be nodes. A certificate is for the node "
       "(`node`) of its name or of that name's first label; one of a wildcard for all."},
      {"insecure", OneOf(&S::insecure, {"no", "yes"}), "no",
       "Whether `listen` and `wire_listen` may be other than loopback addresses without tls_ca. "
       "Whoever reaches `listen` then may look, and whoever is on the way reads and can change "
       "all, rows too."},
      {"cluster_secret", Text(&S::cluster_secret), "",
       "Without tls_ca: file, mode 0600, of a secret of at least 16 bytes, the same on all nodes: "
       "a node that does not know it is refused. Make it with: openssl rand -hex 32"},
      {"plain_unique_ids", OneOf(&S::plain_unique_ids, {"refuse", "allow"}), "refuse",
       "Whether NCCL unique ids may cross a link that is neither TLS nor loopback. Whoever reads "
       "one can enter the communicator."},
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
       "A worker that has not answered for so long is killed and replaced; a GPU's worker that "
       "starts has 90s at least."},
      {"refuse_after_hold_up", Time(&S::refuse_after_hold_up, absl::ZeroDuration()), "10m",
       "For how long a user may not attach who has kept a worker waiting in the kernel for his "
       "memory; never epd's own user or root. 0: his sessions stay, too.",
       true},
  };
}

// Defaults are half of what the node has, or far above what jobs use: eight processes and a hundred groups.
std::vector<SettingRow> LimitSettings() {
  using S = Settings;
  constexpr uint64_t kMany = uint64_t{1} << 32;
  return {
      {"max_sessions", Count(&S::max_sessions, 1, shm::kMaxSessions), "1024",
       "Clients attached at the same time.", true},
      {"max_groups", Count(&S::max_groups, 1, 65536), "1024", "Groups at the same time.", true},
      {"max_sessions_per_uid", Count(&S::max_sessions_per_uid, 1, shm::kMaxSessions), "512",
       "Sessions of one user: half of all, so that another one can always attach.", true},
      {"max_groups_per_uid", Count(&S::max_groups_per_uid, 1, 65536), "512",
       "Groups that one user's sessions are in: half of all.", true},
      {"max_ranks_per_uid", Count(&S::max_ranks_per_uid, 1, kMany), "65536",
       "Ranks that one user's sessions hold or ask for in all groups, 64 for each of its 512 "
       "sessions and as many again just released; each costs the coordinator some 200 bytes.",
       true},
      {"max_table_entries_per_uid", Count(&S::max_table_entries_per_uid, 1, kMany), "16777216",
       "Entries of the tables that say which rank owns an expert, of one user's Joins, at 4 bytes: "
       "512 sessions with 64 tables of 512 experts. Contiguous blocks need no table.",
       true},
  };
}

// Of what is under way at the same time.
std::vector<SettingRow> WorkLimitSettings() {
  using S = Settings;
  constexpr uint64_t kMany = uint64_t{1} << 32;
  return {
      {"slots_per_session", Count(&S::slots_per_session, limits::kMinOpSlots, limits::kMaxOpSlots),
       absl::StrCat(limits::kMinOpSlots),
       "Op slots of one session for one worker: a call that is outstanding on a CPU takes one, a "
       "call site in a GPU's stream three of one group of 64 for good, so that a training step of "
       "61 "
       "layers with five sites each takes 960. 4 KiB each, once used; clients of GPUs pin all."},
      {"max_slots_per_uid", Count(&S::max_slots_per_uid, limits::kMinOpSlots, kMany), "1048576",
       "Op slots of one user's sessions, for all workers: 4 GiB, if all are used, which no other "
       "limit counts. What 512 sessions have with the CPU's worker and seven GPUs'.",
       true},
      {"max_operations_per_session", Count(&S::max_operations_per_session, 1, limits::kMaxOpSlots),
       absl::StrCat(limits::kMinOpSlots),
       "Operations that one session takes part in at the same time; no more than it has slots."},
      {"max_operations_per_uid", Count(&S::max_operations_per_uid, 1, shm::kMaxOperations),
       absl::StrCat(shm::kMaxOperations / 2),
       "Open operations of one user's tenants: half of what a worker has records for."},
      {"max_staging_per_tenant", Bytes(&S::max_staging_per_tenant, 0), "0",
       "Staging of one tenant's operations at the same time, over its ranks on this node; those "
       "beyond wait for the tenant's own. 0: all of staging_bytes, since nobody holds it longer "
       "than "
       "max_undecided and 30s."},
      {"max_staging_per_uid", Bytes(&S::max_staging_per_uid, 0), "0",
       "The same of all tenants of one user, with what its dead sessions still hold, and what is "
       "free and still in memory, which counts as the user's until it is back. 0: all. Set it "
       "where attach_uids lets several users in."},
      {"max_undecided", Time(&S::max_undecided, absl::Milliseconds(1)), "10m",
       "How long an operation may hold staging without an outcome, whatever `undecided` its group "
       "asks for; copying takes milliseconds."},
      {"max_queued_bytes", Bytes(&S::max_queued_bytes, 262144), "4MiB",
       "Messages that wait for a client which does not read its socket; beyond it the session "
       "ends. "
       "Those of all groups' formation are some hundred KiB."},
      {"max_unattached", Count(&S::max_unattached, 1, 65536), "512",
       "Connections that have not said who they are, which takes a client microseconds.", true},
      {"max_unattached_per_uid", Count(&S::max_unattached_per_uid, 1, 65536), "256",
       "The same of one user: half of all.", true},
      {"attach_deadline", Time(&S::attach_deadline, absl::Milliseconds(1)), "10s",
       "How long a connection may take to say who it is.", true},
      {"max_watchers", Count(&S::max_watchers, 1, 65536), "256", "Open streams of WatchGroup.",
       true},
      {"max_orders", Count(&S::max_orders, 1, 65536), "1024",
       "Operators' orders that are open, and answers kept for those who repeat one.", true},
  };
}

std::vector<SettingRow> LogSettings() {
  using S = Settings;
  return {
      {"log_level", OneOf(&S::log_level, {"debug", "info", "warn", "error"}), "info",
       "The least severe line kept.", true},
      {"log_file", Text(&S::log_file), "", "Where the log goes. Empty: standard error.", true},
  };
}

}  // namespace

uint64_t DefaultStagingBytes(uint64_t memory_bytes) {
  constexpr uint64_t kOthers = uint64_t{128} << 20;
  constexpr uint64_t kLeast = uint64_t{1} << 20;
  if (memory_bytes <= kOthers) return kLeast;
  return std::max(kLeast, std::min(memory_bytes / 4, (memory_bytes - kOthers) / 2));
}

std::vector<SettingRow> SettingTable(const MachineFacts& facts) {
  std::vector<SettingRow> table;
  for (const std::vector<SettingRow>& part :
       std::vector{PlaceSettings(facts), WorkSettings(facts), CudaSettings(), ClusterSettings(),
                   TrustSettings(), DeadlineSettings(), SupervisionSettings(), LimitSettings(),
                   WorkLimitSettings(), LogSettings()}) {
    table.insert(table.end(), part.begin(), part.end());
  }
  return table;
}

}  // namespace epd
