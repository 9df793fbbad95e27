// epctl's command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/epd/v1/attach.pb.h"

namespace epd::cli {

enum class Output { kTable, kJson };

struct Options {
  std::string command;
  Output output = Output::kTable;
  std::string socket;
  std::string address;
  std::string tls_ca;  // With `address`: files; all three, or none.
  std::string tls_cert;
  std::string tls_key;
  absl::Duration timeout = absl::Seconds(5);
  std::optional<absl::Duration> watch;  // Interval.
  uint64_t watch_count = 0;             // 0: for ever.
  std::string group;       // Positional of groups, ranks, health, drain, close, create, plan.
  bool all_nodes = false;  // Of status, version and support-archive.
  bool all_past = false;   // Of why.
  bool node_only = false;  // Of health.
  bool once = false;       // Of top.
  char order = 'o';        // Of top, see TopOrders().
  uint64_t epoch = 0;
  std::string error;                          // Of explain: a number or a code.
  bool overview = false;                      // No command was given: status, and what to ask next.
  std::optional<std::string> tenant;          // Of drain, close and why; unset: all.
  std::string file;                           // That support-archive writes.
  std::string from;                           // Of why: an archive instead of the daemon.
  absl::Duration seconds = absl::Seconds(5);  // Of trace.
  absl::Duration drain_deadline = absl::Seconds(30);
  epd::v1::GroupSpec spec;  // Of the group that `create` makes and `plan` weighs, but for its name.
  uint32_t element_bytes = 0;  // Of `plan`.
  std::string program;         // Of `replace`; empty: where the one that runs was started from.
};

struct ParsedOptions {
  std::optional<Options> options;  // Unset: print `text` and end: 0 for help, else usage.
  std::string text;  // Help, the manual, a completion script, or what is wrong with the arguments.
  bool is_help = false;
};

// `args` without the program's name.
ParsedOptions ParseOptions(std::vector<std::string> args);

}  // namespace epd::cli
