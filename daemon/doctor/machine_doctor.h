// What an operator should know about this machine, as epd sees it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/epd/v1/node.pb.h"

namespace epd {

// What the machine says; read by ReadMachine(), and made up by tests.
struct MachineReport {
  unsigned num_cores = 0;
  uint64_t memory_bytes = 0;
  uint64_t cgroup_limit_bytes = 0;  // 0: none.
  uint64_t cgroup_used_bytes = 0;
  std::string cgroup_file = {};  // Where the limit stands: of its own group or of one above it.
  // Of these limits and the machine's memory, what the one leaves that has the least room.
  uint64_t least_room_bytes = 0;
  std::string least_room_file = {};
  // The kernel's line for shared memory: "always within_size [advise] never ...".
  std::string transparent_huge_pages;
  uint64_t descriptors_limit = 0;
  uint64_t descriptors_used = 0;
  uint64_t locked_limit_bytes = 0;  // RLIMIT_MEMLOCK; UINT64_MAX: none.
  uint64_t shm_bytes = 0;           // Of the file system /dev/shm; 0: there is none.
  std::string socket_folder;
  unsigned socket_folder_mode = 0;
  uint64_t socket_folder_free_bytes = 0;
};

// Reads /proc, /sys and the folder of `socket_path`. Fields that cannot be read stay empty.
MachineReport ReadMachine(const std::string& socket_path);

struct WorkerReading {
  std::string name;   // "cpu", "cuda:0".
  std::string state;  // "RUNNING" is fine.
  uint32_t num_restarts = 0;
  std::string last_exit = {};  // How the last one ended.
  std::string gpu = {};        // The GPU that it serves.
  std::string problem = {};    // Why it cannot use that.
};

// What epd itself knows.
struct DaemonReport {
  uint64_t staging_bytes = 0;
  size_t num_sessions = 0;
  std::vector<WorkerReading> workers;  // The CPU's first.
  std::string nccl_version;            // Empty: none.
  std::string nccl_path;
  std::string nccl_problem;
  std::string certificate_ends;        // Empty: links are plain.
  std::string certificate_names = {};  // Under which this node may serve, and which others dial.
  std::string certificate_problem;
};

// Pure: all findings, good ones too, in a fixed order.
v1::GetDoctorResponse Diagnose(const MachineReport& machine, const DaemonReport& daemon);

}  // namespace epd
