// epd's configuration: one struct, one table (settings_table.cc), read from defaults, a file and
// flags in this order.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace epd {

// The GPUs that groups are served on.
struct CudaDevices {
  std::set<int32_t> ordinals = {};
  bool on_demand = false;  // Each, from when a rank on it joins.
};

struct Settings {
  std::string socket;
  std::string grpc_socket;
  std::string listen;
  std::string metrics_listen;
  std::string metrics_token;
  std::string metrics_cert;
  std::string metrics_key;
  std::string otlp_endpoint;
  std::string otlp_ca;
  std::string node;
  std::string worker;
  uint64_t staging_bytes = 0;
  std::string executor;
  std::string simd;
  absl::Duration spin;
  std::string nccl_library;
  uint64_t cuda_staging_bytes = 0;
  std::string staging;
  CudaDevices cuda_devices;
  absl::Duration cuda_limit;
  uint64_t max_num_sms = 0;

  std::string coordinator;
  std::string peers;
  std::string rendezvous;
  std::string advertise;
  absl::Duration lease;
  std::string etcd_ca;
  std::string etcd_cert;
  std::string etcd_key;
  std::string etcd_user;
  std::string etcd_password_file;
  std::string tls_ca;
  std::string tls_cert;
  std::string tls_key;
  std::string operators;
  std::string nodes;
  std::string insecure;
  std::string cluster_secret;
  std::string plain_unique_ids;
  absl::Duration heartbeat;
  std::string wire_listen;
  absl::Duration node_silence;
  absl::Duration start_grace;
  absl::Duration warn_after;
  absl::Duration absent;
  absl::Duration undecided;
  absl::Duration form;

  absl::Duration drain_deadline;
  absl::Duration idle_exit;
  absl::Duration worker_backoff_min;
  absl::Duration worker_backoff_max;
  absl::Duration worker_heartbeat;
  absl::Duration worker_stuck;
  absl::Duration refuse_after_hold_up;

  std::set<uint32_t> attach_uids;
  std::set<uint32_t> attach_gids;
  uint64_t max_sessions = 0;
  uint64_t max_groups = 0;
  uint64_t max_sessions_per_uid = 0;
  uint64_t max_groups_per_uid = 0;
  uint64_t max_ranks_per_uid = 0;
  uint64_t max_table_entries_per_uid = 0;
  uint64_t slots_per_session = 0;
  uint64_t max_slots_per_uid = 0;
  uint64_t max_operations_per_session = 0;
  uint64_t max_operations_per_uid = 0;
  uint64_t max_staging_per_tenant = 0;
  uint64_t max_staging_per_uid = 0;
  absl::Duration max_undecided;
  uint64_t max_queued_bytes = 0;
  uint64_t max_unattached = 0;
  uint64_t max_unattached_per_uid = 0;
  absl::Duration attach_deadline;
  uint64_t max_watchers = 0;
  uint64_t max_orders = 0;

  std::string log_level;
  std::string log_file;
};

// A peer, node or coordinator, that is silent for so long counts as lost.
absl::Duration NodeSilence(const Settings& settings);

enum class Origin { kDefault, kFile, kFlag };
absl::string_view Name(Origin origin);

// One setting as it is in effect.
struct EffectiveSetting {
  std::string name;
  std::string value;
  Origin origin = Origin::kDefault;
  std::string help;
};

// What a command line asks for.
struct ParsedSettings {
  Settings settings;
  std::vector<EffectiveSetting> effective;  // In the order of the table.
  bool help = false;
  bool version = false;
  bool print_config = false;
};

// What defaults are made from; read from the machine by ReadMachineFacts().
struct MachineFacts {
  std::string host_name;
  std::string runtime_dir;       // "/run/epd" for root, else this user's own.
  std::string binary_dir;        // Where the running binary lies.
  uint64_t memory_bytes = 0;     // RAM, or the cgroup's limit when that is lower.
  std::string slurm_nodes = {};  // SLURM_JOB_NODELIST, or "".
};
MachineFacts ReadMachineFacts();

// Parses "--name=value", "--name value", "--config=FILE", "--help", "--version" and
// "--print-config"; in names '-' and
// '_' are the same. A flag wins over the file, the file over the default.
//   INVALID_ARGUMENT  an unknown name (the nearest one is suggested) or a value that does not
//   parse: names the flag
//                     or the file's line, what was got and what is expected
//   NOT_FOUND         the file of --config cannot be read
absl::StatusOr<ParsedSettings> ParseSettings(const std::vector<std::string>& args,
                                             const MachineFacts& facts);

// The text of --help: every setting with its type, default and meaning.
std::string HelpText(const MachineFacts& facts);

// The text of --print-config: a configuration file with each value's origin as a comment.
std::string PrintConfig(const ParsedSettings& parsed);

}  // namespace epd
