#include "client/cli/error_table.h"

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace epd::cli {
namespace {

constexpr char kBegin[] = "<!-- errors: written by error_document; a test compares -->\n";
constexpr char kEnd[] = "<!-- end of errors -->\n";

std::string Row(const ErrorEntry& entry) {
  return absl::StrCat("| ", NumberText(entry.number), " | ", entry.code, " | ", entry.what, " | ",
                      entry.causes, " | ", entry.action, " |\n");
}

}  // namespace

// NOLINTNEXTLINE(readability-function-size): a table.
const std::vector<ErrorEntry>& ErrorTable() {
  static const auto* const entries = new std::vector<ErrorEntry>{
      {1, "CANCELLED", "a call was given up",
       "the program was interrupted, or closed its session in another thread, while the call "
       "waited",
       "call again, if that was not meant", "tests/integration/jax/scripts/interrupted.py"},
      {2, "UNKNOWN", "a code that this version does not know",
       "the other side is of a newer version", "`epctl version`; upgrade the older side",
       "tests/unit/daemon/codec/codec_test.cc"},
      {3, "INVALID_ARGUMENT", "any other wrong argument",
       "a size, type, index or text on some rank that the call does not take; the text has "
       "what was got and what was expected",
       "fix the program; nothing to do on the node",
       "tests/unit/daemon/worker/hostile_request_test.cc"},
      {4, "DEADLINE_EXCEEDED", "any other deadline that passed",
       "the worker did not move rows in time, or an operator's order was not done in time",
       "`epctl why NAME`; *A job hangs*", "tests/unit/daemon/worker/exchange_deadline_test.cc"},
      {5, "NOT_FOUND", "no group of that name", "it was closed, or is spelt otherwise",
       "the text lists the names; `epctl groups`", "tests/integration/daemon/test_node_api.py"},
      {6, "ALREADY_EXISTS", "the name is taken by another spec",
       "somebody else's group, or this program with other sizes",
       "use another name or `EPD_JOB`, or `epctl close` the old group",
       "tests/integration/daemon/test_node_api.py"},
      {7, "PERMISSION_DENIED", "the caller may not do this",
       "the socket belongs to another user; or over TCP the certificate has no role that the "
       "call takes",
       "run as that user, or set `User=` of the unit; the text names the role and the "
       "setting that would give it",
       "tests/integration/daemon/test_roles.py"},
      {8, "RESOURCE_EXHAUSTED", "any other limit",
       "a quota (`max_sessions`, `max_ranks_per_uid`, ...), too many outstanding calls of "
       "one process, descriptors, or on a GPU arenas larger than what is left of "
       "`cuda_staging_bytes`",
       "the text names the limit; `epctl sessions` and `epctl memory` show who has what; "
       "raise it or use less. Outstanding calls: wait for some. GPUs: raise "
       "`cuda_staging_bytes` and lower the clients' XLA_PYTHON_CLIENT_MEM_FRACTION to what "
       "`epctl status` says",
       "tests/integration/daemon/test_limits.py"},
      {9, "FAILED_PRECONDITION", "any other state that does not allow the call",
       "the group was left; an object of a parent process used after a fork; links without "
       "TLS or secret",
       "the text names the state; wait for it, or join again",
       "tests/integration/cli/test_drain.py"},
      {10, "ABORTED", "any other cause that ended the epoch",
       "another epoch, or executions that were begun while the group formed again",
       "prepare again and repeat the step on all ranks",
       "tests/unit/daemon/worker/exchange_failure_test.cc"},
      {12, "UNIMPLEMENTED", "no common version, or something that this version cannot do",
       "programs of different releases", "`epctl version`; upgrade the side that the text names",
       "tests/integration/daemon/test_skew.py"},
      {13, "INTERNAL", "a fault of epd", "a bug", "keep the log and the text, and report it",
       "tests/unit/daemon/backend/cuda/device_work_test.cc"},
      {14, "UNAVAILABLE", "any other loss",
       "the daemon or its coordinator is not there, or is starting or stopping",
       "`epctl status`; start it; call again", "tests/integration/client_c/autostart_test.cc"},
      {15, "DATA_LOSS", "a plan or staging that was overwritten",
       "a stray write in the client, which the checksum only finds; \"the counts that a rank "
       "sent are damaged\": that rank's process",
       "look for the write; replace the named rank's process",
       "tests/integration/client_c/hostile_arena_test.cc"},
      {16, "UNAUTHENTICATED", "a peer that cannot show who it is",
       "a certificate that has expired or is another cluster's, or another `cluster_secret`",
       "the line `peer refused` in the log of the node that refused says which; put the "
       "right file there",
       "tests/unit/daemon/rpc/cluster/link_proof_test.cc"},
      {1001, "INVALID_ARGUMENT", "specs differ",
       "ranks of one group joined with different sizes or settings; the text has both values "
       "and the ranks",
       "give every rank the same spec", "tests/integration/client_c/joining_test.cc"},
      {1002, "INVALID_ARGUMENT", "the ranks' calls do not agree in ...",
       "one rank traced another static argument (`top_k`, a type, a shape); the text names "
       "it, both values and the ranks",
       "fix that rank's configuration", "tests/integration/client_c/exchange_test.cc"},
      {1003, "INVALID_ARGUMENT", "ranks wait for each other in different programs",
       "other code, another configuration, or programs launched in another order",
       "compare what the named ranks run", "tests/unit/daemon/worker/program_divergence_test.cc"},
      {1004, "INVALID_ARGUMENT", "handle_mem belongs to another group",
       "a routing plan from before the group was joined again", "prepare in this group",
       "tests/integration/client_c/joining_test.cc"},
      {1005, "ABORTED", "the group was formed anew since prepare",
       "a routing plan of an earlier epoch: a rank or a worker was replaced in between",
       "prepare again and repeat the step", "tests/integration/client_c/joining_test.cc"},
      {1006, "ALREADY_EXISTS", "held by rank=...",
       "a living session holds the rank: two processes were given one rank, two jobs have one "
       "name, or an old run still lives",
       "the text names host, pid, command and start of the holder: end it, or give the jobs "
       "different `job=`/`EPD_JOB`; the holder's side sees it in `epctl ranks` and `why`",
       "tests/integration/client_c/joining_test.cc"},
      {1007, "INVALID_ARGUMENT", "a rank was claimed twice",
       "two processes asked for one rank while the group formed: they were given one rank, or two "
       "jobs have one name",
       "give every process its own rank, and the jobs different `job=`/`EPD_JOB`",
       "tests/unit/daemon/control/formation_errors_test.cc"},
      {1008, "any", "phase=announce: and what one rank's own call said",
       "a rank refused its call, so it fails on all ranks; the text is that rank's",
       "mend what that rank says; its host and pid stand in front",
       "tests/integration/client_c/faults_test.cc"},
      {1101, "RESOURCE_EXHAUSTED", "would receive more slots than its capacity",
       "more rows for a rank than `recv_capacity_per_rank`",
       "raise it, balance the routing, or allow drops; `epctl groups NAME` shows the busiest "
       "experts",
       "tests/integration/client_c/exchange_test.cc"},
      {1102, "RESOURCE_EXHAUSTED", "one operation needs more staging than there is",
       "tokens x hidden of one call against `staging_bytes`",
       "`epctl plan` says what a call needs; raise `staging_bytes`, or send fewer tokens per "
       "call",
       "tests/integration/client_c/staging_test.cc"},
      {1103, "RESOURCE_EXHAUSTED", "no staging became free in time",
       "other operations, or other groups, held it until the deadline; or no process, descriptor "
       "or memory was to be had for its pages: then the text says so",
       "`epctl memory`; raise `staging_bytes`, or run less at the same time; or raise the limit "
       "that the text names",
       "tests/integration/client_c/staging_test.cc"},
      {1104, "any", "a node cannot serve the group",
       "its worker could make no memory for the group's arenas, or no communicator; the text "
       "ends with why",
       "`epctl doctor` on that node; give it the memory, or lower the group's sizes",
       "tests/integration/client_c/staging_test.cc"},
      {1105, "RESOURCE_EXHAUSTED", "others have taken the memory that staging would need",
       "a limit of memory of epd's control group, of one above it, or the machine's memory leaves "
       "too little: it was lowered, or other processes use more; the text names its file",
       "raise that limit, have the others use less, or send fewer tokens per call; `epctl doctor` "
       "names the limit that counts",
       "tests/integration/daemon/test_control_groups.py"},
      {1201, "DEADLINE_EXCEEDED", "not READY in time",
       "not all ranks came within the deadline `form`",
       "the text lists arrived, missing and dead ranks: start the missing ones",
       "tests/integration/client_c/joining_test.cc"},
      {1202, "DEADLINE_EXCEEDED", "waits for ranks in phase=absent",
       "a living rank did not reach the operation within the deadline `absent`", "*A job hangs*",
       "tests/integration/client_c/faults_test.cc"},
      {1203, "DEADLINE_EXCEEDED", "was admitted and is not published",
       "a rank was stopped between announcing and publishing: a debugger, or an overloaded "
       "machine",
       "*A job hangs*", "tests/unit/daemon/worker/exchange_deadline_test.cc"},
      {1301, "UNAVAILABLE", "a rank's process is gone",
       "it ended or was killed; the text names host and pid",
       "see its own log for why it ended, and start it again",
       "tests/integration/client_c/faults_test.cc"},
      {1302, "UNAVAILABLE", "a worker of the group is gone",
       "it was killed (memory), it crashed, its device failed (a kernel's illegal access, a GPU "
       "that fell off the "
       "bus, work that did not end within `cuda_limit`), its epd or node died, or two nodes cannot "
       "reach each other; "
       "the text names the worker, its node and how it ended",
       "repeat the step: the group forms again when the worker is back; if it comes back: *The "
       "worker dies*, "
       "`epctl status --all-nodes`, `epctl doctor`, on a GPU `dmesg` for Xid lines",
       "tests/integration/client_c/nodes_test.cc"},
      {1304, "UNAVAILABLE", "this node's worker is gone since its epd has ended", "epd was killed",
       "start epd; calls connect again once it runs", "tests/integration/client_c/faults_test.cc"},
      {1305, "UNAVAILABLE", "the session with the daemon has ended",
       "epd was killed or restarted, or closed the session; the text says which",
       "start epd again if it does not run; connect and join again",
       "tests/integration/client_c/faults_test.cc"},
      {1306, "UNAVAILABLE", "the epd of a node is stopping",
       "somebody stopped or restarted it in order",
       "nothing: join again; calls of `epd.jax` wait by themselves",
       "tests/integration/client_c/faults_test.cc"},
      {1401, "FAILED_PRECONDITION", "the group is draining",
       "an operator drains it, or its node stops",
       "wait until it is open again, or join another group",
       "tests/unit/daemon/worker/exchange_failure_test.cc"},
      {1402, "FAILED_PRECONDITION", "backend=cuda cannot be served here",
       "no worker with a usable GPU; the text says why (no driver, too old, no memory left, "
       "`staging=vmm` where it does not work, `cuda_staging_bytes=0`, `cuda_devices=none`, compute "
       "mode EXCLUSIVE_PROCESS)",
       "`epctl doctor`, `epctl status`; for the mode, as root, `nvidia-smi -c DEFAULT`; repair "
       "what "
       "it names and restart epd, or ask for `backend=cpu` (in JAX: give CPU devices)",
       "tests/unit/daemon/control/worker_choice_test.cc"},
      {1403, "FAILED_PRECONDITION", "nodes do not agree",
       "versions of epd, NCCL or the driver differ, or clocks by more than a minute; the "
       "text names the odd nodes",
       "make them equal; `epctl version --all-nodes`, `epctl doctor`",
       "tests/unit/daemon/control/agreement_test.cc"},
      {1404, "any", "the folder of this user's private epd cannot be used",
       "`XDG_RUNTIME_DIR` names a folder that is not there (a scheduler or container kept the "
       "variable), a relative path, or another user's (`sudo -E`, `su`); or it is read-only or "
       "full",
       "set it to a folder of this user with mode 0700, or unset it; *A private daemon is in the "
       "way*",
       "tests/integration/client_c/autostart_test.cc"},
      {1405, "FAILED_PRECONDITION", "a stale mount",
       "a container mounted the socket's folder, or its file, which was deleted outside since: epd "
       "was restarted without `RuntimeDirectoryPreserve=yes`",
       "start the container again; *A container does not find epd again*",
       "tests/integration/client_c/autostart_test.cc"},
      {1406, "FAILED_PRECONDITION", "a private epd could not be run, or ended at once",
       "the text has the last line that it wrote, and where its log is", "mend what that line says",
       "tests/integration/client_c/autostart_test.cc"},
  };
  return *entries;
}

std::string NumberText(int number) { return absl::StrFormat("EPD-%04d", number); }

std::vector<ErrorEntry> FindErrors(const std::string& asked) {
  if (asked.empty()) return ErrorTable();
  const std::string wanted = absl::AsciiStrToUpper(asked);
  std::vector<ErrorEntry> found;
  int number = 0;
  const bool is_number = absl::SimpleAtoi(absl::StripPrefix(wanted, "EPD-"), &number);
  for (const ErrorEntry& entry : ErrorTable()) {
    if (is_number ? entry.number == number : entry.code == wanted) found.push_back(entry);
  }
  return found;
}

std::string WithErrorTable(const std::string& runbook) {
  const size_t begin = runbook.find(kBegin);
  const size_t end = runbook.find(kEnd);
  if (begin == std::string::npos || end == std::string::npos || end < begin) return "";
  std::string table = "| number | code | error | usual causes | do |\n|---|---|---|---|---|\n";
  for (const ErrorEntry& entry : ErrorTable()) table += Row(entry);
  return absl::StrCat(runbook.substr(0, begin), kBegin, "\n", table, "\n", runbook.substr(end));
}

}  // namespace epd::cli
