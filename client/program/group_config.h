// A group as this process asked for it: epd_program_group, with texts and tables of its own.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/c/status.h"
#include "client/program/epd_program.h"

namespace epd::program {

using client::Code;
using client::Status;

// Where the daemon is; empty: the C library looks for it.
struct Endpoint {
  std::string socket_path;
  std::string daemon_path;  // Started if no daemon is found.
};

class GroupConfig {
 public:
  // INVALID_ARGUMENT: a struct without its size, or no spec.
  static Status Read(const epd_program_group* given, std::shared_ptr<const GroupConfig>* config);
  GroupConfig(const GroupConfig&) = delete;
  GroupConfig& operator=(const GroupConfig&) = delete;

  std::string alias;
  std::string job;
  Endpoint endpoint;
  epd_group_spec spec;  // Without a name. What it points to lives as long as this.
  std::uint32_t local_experts = 0;
  std::int64_t owners = 0;
  bool by_rank = false;
  bool joins_by_call = false;
  // Domain -> (position along ep -> device).
  std::map<std::uint32_t, std::map<std::uint32_t, std::string>> held;
  // (Domain, position) -> who holds it.
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::string> elsewhere;
  std::string devices;
  std::string program;
  std::string metadata;
  // For a daemon that has gone; zero: no call waits for it.
  std::chrono::milliseconds reconnect_timeout{};

  // The name in the daemon.
  std::string NameOf(std::int64_t domain) const {
    return job + "/" + alias + "/" + std::to_string(domain);
  }

 private:
  GroupConfig() = default;
  Status ReadSpec(const epd_group_spec* given);

  std::deque<std::string> texts_;
  std::vector<std::uint32_t> expert_owner_;
};

}  // namespace epd::program
