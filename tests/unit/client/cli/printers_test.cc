// Goal: the tables that people read, word for word.
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include "client/cli/printers/tables.h"

namespace epd::cli {
namespace {

template <typename Message>
Message Parse(const std::string& text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message));
  return message;
}

constexpr char kGroup[] = R"pb(
  groups {
    group_id: 171
    spec {
      name: "train"
      instance: "run-7"
      num_ranks: 2
      num_experts: 4
      max_tokens_per_rank: 512
      recv_capacity_per_rank: 2560
      hidden: 2048
      top_k: 4
      max_token_dtype: DTYPE_BFLOAT16
      executor: EXECUTOR_CLIENT
      backend: "cpu"
    }
    state: GROUP_STATE_DEGRADED
    epoch: 3
    formation: 5
    generation: 2
    ranks {
      group: "train"
      rank: 0
      host: "h1"
      pid: 4711
      client_name: "python3 train.py"
      session_id: 9
      device: "cpu:0"
      unique_id_sha256: "\xab\x41\x42"
      phase: "publish"
      phase_age { seconds: 75 }
      experts: 0
      experts: 1
    }
    ranks {
      group: "train"
      rank: 1
      phase: "missing"
      phase_age { seconds: 3 }
      experts: 2
      experts: 3
    }
    last_error {
      code: 14
      message: "[epd:UNAVAILABLE] group=train epoch=2 rank=1: its process ended"
    }
    num_operations: 12345
    num_failed: 2
    num_failed_calls: 7
    counted_by: "n1"
    bytes_moved: 3221225472
    num_open_operations: 1
    expert_routes: 100
    expert_routes: 300
    expert_routes: 0
    expert_routes: 400
    state_age { seconds: 4000 }
    link: "nccl"
    link_reason: "cuda:2 has no peer access to cuda:0"
  })pb";

TEST(StatusTableTest, SaysTheProblemsAndShowsTheWorkers) {
  const auto status = Parse<epd::v1::GetStatusResponse>(R"pb(
    node: "n1"
    version: "0.1.0"
    pid: 42
    up { seconds: 7260 }
    health: HEALTH_DEGRADED
    problems: "group train lost rank 1"
    workers {
      device: "cpu"
      state: WORKER_STATE_RUNNING
      pid: 43
      num_restarts: 1
      backend: "cpu"
      simd: "avx2"
      last_exit: "killed by signal 9 (SIGKILL)"
      up { seconds: 12 }
    }
    workers {
      device: "cuda:0"
      state: WORKER_STATE_BACKING_OFF
      gpu { problem: "no driver" }
    }
    workers {
      device: "cuda:1"
      state: WORKER_STATE_RUNNING
      pid: 44
      backend: "cuda"
      gpu {
        name: "Some GPU"
        ordinal: 1
        memory_bytes: 8589934592
        staging_bytes: 1073741824
        sharing: "vmm"
        client_memory_fraction: 0.75
      }
    }
    num_groups: 2
    num_ready_groups: 1
    num_sessions: 3
    pool_bytes: 8589934592
    pool_committed_bytes: 1048576
    pool_peak_bytes: 2097152
    coordinator: "10.0.0.1:7000"
    certificate { left { seconds: 100000 } }
    worker_snapshot_stale: true)pb");
  EXPECT_EQ(StatusTable(status), R"(node:         n1
health:       degraded
epd:          0.1.0, pid 42, up 2h1m
groups:       2 (1 ready)
sessions:     3
staging:      1.0 MiB committed, 2.0 MiB at most so far, of 8.0 GiB
coordinator:  10.0.0.1:7000 (NOT connected)
certificate:  ends in 1d3h
gpu: 0 cannot be used for backend=cuda: no driver
gpu: 1 (Some GPU), 1.0 GiB of 8.0 GiB reserved for staging, shared by vmm; XLA_PYTHON_CLIENT_MEM_FRACTION of one client: 0.75
problem: group train lost rank 1

WORKER  STATE        PID   UP  RESTARTS  BACKEND  SIMD  LAST EXIT
cpu     running       43  12s         1  cpu      avx2  killed by signal 9 (SIGKILL)
cuda:0  backing-off    -    -         0  -        -     -
cuda:1  running       44    -         0  cuda     -     -
A worker does not answer (stopped, or the machine is overloaded): its figures are the last known.
)");
}

TEST(StatusTableTest, ANodeAloneIsItsOwnCoordinator) {
  for (const char* own : {"coordinates: true", "coordinator_connected: true"}) {
    EXPECT_NE(
        StatusTable(Parse<epd::v1::GetStatusResponse>(own)).find("coordinator:  this daemon\n"),
        std::string::npos)
        << own;
  }
}

TEST(StatusTableTest, WhereNobodyCoordinatesItSaysSo) {
  EXPECT_NE(StatusTable(epd::v1::GetStatusResponse()).find("coordinator:  none (see the problems"),
            std::string::npos);
}

TEST(GroupsTableTest, HasALinePerGroupAndItsLastError) {
  EXPECT_EQ(
      GroupsTable(Parse<epd::v1::ListGroupsResponse>(kGroup)),
      R"(GROUP  STATE     SINCE  RANKS  EXPERTS  HIDDEN  EPOCH  LINK     OPS  OPEN  FAILED  FAILED CALLS    MOVED
train  degraded   1h6m    1/2        4    2048      3  nccl  12,345     1       2             7  3.0 GiB
Counted on node n1 since each group was made: operations that ended well (OPS) and that did not (FAILED),
calls of ranks here that got an error, bytes that ranks here staged (MOVED).

last error of train: [epd:UNAVAILABLE] group=train epoch=2 rank=1: its process ended
)");
  EXPECT_EQ(GroupsTable(epd::v1::ListGroupsResponse()), "no groups\n");
}

TEST(GroupDetailsTest, ShowsRanksAndTheBusiestExperts) {
  EXPECT_EQ(GroupDetails(Parse<epd::v1::ListGroupsResponse>(kGroup)), R"(group:       train
instance:    run-7
id:          171
state:       degraded for 1h6m
epoch:       3, formation 5, generation 2
size:        2 ranks, 4 experts, hidden 2048, top-4, at most bfloat16
limits:      512 tokens and 2560 receive slots per rank, overflow is an error
runs on:     cpu backend, client executor
rows go:     by nccl: cuda:2 has no peer access to cuda:0
operations:  12,345 done, 1 open, 2 failed (7 calls), 3.0 GiB moved, on node n1
unique id:   sha256 ab4142, on 1 of 2 ranks
last error:  [epd:UNAVAILABLE] group=train epoch=2 rank=1: its process ended

GROUP  RANK  PHASE      FOR  HOST   PID  SESSION  DEVICE  EXPERTS  CLIENT
train     0  publish  1m15s  h1    4711        9  cpu:0   0-1      python3 train.py
train     1  missing     3s  -        -        -  -       2-3      -

busiest experts since the group was made:
EXPERT  ROUTES  OF MEAN
     3     400     2.00
     1     300     1.50
     0     100     0.50
     2       0     0.00
)");
}

TEST(SessionsTableTest, JoinsTheRanksOfEachGroup) {
  const auto sessions = Parse<epd::v1::ListSessionsResponse>(R"pb(
    sessions {
      session_id: 9
      pid: 4711
      uid: 1000
      host: "h1"
      client_name: "python3 train.py"
      client_version: "0.1.0"
      age { seconds: 90 }
      num_open_operations: 2
      ranks { group: "train" rank: 1 }
      ranks { group: "train" rank: 0 }
      ranks { group: "eval" rank: 3 }
    }
    sessions { session_id: 10 pid: 5 host: "h1" })pb");
  EXPECT_EQ(SessionsTable(sessions),
            R"(SESSION   PID   UID  HOST    AGE  OPEN  CLIENT            VERSION  RANKS
      9  4711  1000  h1    1m30s     2  python3 train.py  0.1.0    eval:3 train:0-1
     10     5     0  h1       0s     0  -                 -        -
)");
  EXPECT_EQ(SessionsTable(epd::v1::ListSessionsResponse()), "no sessions\n");
}

TEST(SessionsTableTest, ShowsUseAgainstTheLimitsOfSessionsAndUsers) {
  const auto sessions = Parse<epd::v1::ListSessionsResponse>(R"pb(
    sessions {
      session_id: 9
      quotas { setting: "max_operations_per_session" used: 2 max: 256 }
      quotas { setting: "max_queued_bytes" max: 4194304 is_bytes: true }
    }
    users {
      uid: 1000
      quotas { setting: "max_ranks_per_uid" used: 3 max: 16 }
      quotas { setting: "max_staging_per_uid" used: 1048576 max: 4194304 is_bytes: true }
    })pb");
  EXPECT_EQ(SessionsTable(sessions),
            R"(SESSION  PID  UID  HOST  AGE  OPEN  CLIENT  VERSION  OPERATIONS  QUEUED BYTES  RANKS
      9    0    0  -      0s     0  -       -             2/256   0 B/4.0 MiB  -

 UID  RANKS          STAGING
1000   3/16  1.0 MiB/4.0 MiB
)");
}

TEST(SessionsTableTest, NamesTenantsAndWhatTheirJoinsSaid) {
  const auto sessions = Parse<epd::v1::ListSessionsResponse>(R"pb(
    sessions {
      session_id: 9
      pid: 4711
      ranks { group: "moe" tenant: "b" rank: 0 program: "attention" metadata: "layer 3" }
      ranks { group: "moe" tenant: "b" rank: 1 program: "attention" metadata: "layer 3" }
    }
    sessions {
      session_id: 10
      pid: 5
      ranks { group: "moe" rank: 0 }
    })pb");
  EXPECT_EQ(SessionsTable(sessions),
            R"(SESSION   PID  UID  HOST  AGE  OPEN  CLIENT  VERSION  RANKS      PROGRAM    METADATA
      9  4711    0  -      0s     0  -       -        moe/b:0-1  attention  layer 3
     10     5    0  -      0s     0  -       -        moe:0      -          -
)");
}

TEST(RanksTableTest, NamesTenantsProgramsAndMetadataOnlyWhereThereAreSome) {
  const auto ranks = Parse<epd::v1::ListRanksResponse>(R"pb(
    ranks { group: "moe" tenant: "b" rank: 0 phase: "ready" program: "attention" }
    ranks { group: "moe" rank: 0 phase: "ready" })pb");
  EXPECT_EQ(RanksTable(ranks),
            R"(GROUP  TENANT  RANK  PHASE  FOR  HOST  PID  SESSION  DEVICE  EXPERTS  CLIENT  PROGRAM
moe    b          0  ready    -  -       -        -  -       -        -       attention
moe    -          0  ready    -  -       -        -  -       -        -       -
)");
}

TEST(MemoryTableTest, NamesTheOwnerOfEveryArena) {
  const auto memory = Parse<epd::v1::GetMemoryResponse>(R"pb(
    regions {
      owner: "arenas of group moe tenant=b,group eval"
      kind: "staging"
      committed_bytes: 4096
      in_use_bytes: 2048
      arenas {
        users { group: "moe" tenant: "b" rank: 1 }
        users { group: "eval" rank: 0 }
        pid: 4711
        committed_bytes: 4096
        in_use_bytes: 2048
      }
    })pb");
  EXPECT_NE(MemoryTable(memory).find(
                "  moe tenant=b rank 1, eval rank 0 (pid 4711)  arena      4.0 KiB  2.0 KiB"),
            std::string::npos)
      << MemoryTable(memory);
}

TEST(MemoryTableTest, ShowsWhatTenantsHoldAgainstTheirQuota) {
  const auto memory = Parse<epd::v1::GetMemoryResponse>(R"pb(
    tenants {
      group: "moe"
      uid: 1000
      worker: "cpu"
      quota { setting: "max_staging_per_tenant" used: 1048576 max: 4194304 is_bytes: true }
    })pb");
  EXPECT_NE(MemoryTable(memory).find(R"(
GROUP   UID  WORKER   STAGING IN USE
moe    1000  cpu     1.0 MiB/4.0 MiB
)"),
            std::string::npos)
      << MemoryTable(memory);
}

TEST(MemoryTableTest, SumsWhatHasASum) {
  const auto memory = Parse<epd::v1::GetMemoryResponse>(R"pb(
    regions {
      owner: "arenas of group train (ranks 0,1)"
      kind: "staging"
      address_bytes: 17179869184
      committed_bytes: 8388608
      in_use_bytes: 4194304
      peak_bytes: 8388608
      quarantined_bytes: 1024
    }
    regions {
      owner: "slots of session 9"
      kind: "slots"
      address_bytes: 262144
      committed_bytes: 262144
      in_use_bytes: 262144
      peak_bytes: 262144
    }
    pool_bytes: 8589934592
    pool_committed_bytes: 8388608
    pool_peak_bytes: 8388608)pb");
  EXPECT_EQ(
      MemoryTable(memory),
      R"(OWNER                              KIND     COMMITTED     IN USE       PEAK  QUARANTINED  ADDRESS SPACE
arenas of group train (ranks 0,1)  staging    8.0 MiB    4.0 MiB    8.0 MiB      1.0 KiB       16.0 GiB
slots of session 9                 slots    256.0 KiB  256.0 KiB  256.0 KiB          0 B      256.0 KiB
all                                -          8.2 MiB    4.2 MiB          -      1.0 KiB              -

staging pool: 8.0 MiB committed, 8.0 MiB at most so far, of 8.0 GiB
)");
}

TEST(PlanTableTest, SaysOfWhatEachFigureIs) {
  EXPECT_EQ(PlanTable(Parse<epd::v1::PlanMemoryResponse>(R"pb(
              handle_mem_bytes: 20480
              dispatch_bytes_per_rank: 8388608
              combine_bytes_per_rank: 4194304
              slots_bytes_per_session: 262144
              prepare_bytes_per_rank: 4096
              dispatch_backward_bytes_per_rank: 4198400
              combine_backward_bytes_per_rank: 8388608
              eager_bytes_per_rank: 2097152
              total_bytes_per_rank: 18878464
              total_bytes_per_node: 37756928
              pool_bytes: 1073741824
              fits: true
              verdict: "fits beside what is there")pb")),
            R"(one prepare in flight, per rank:             4.0 KiB
one dispatch:                                8.0 MiB
one combine:                                 4.0 MiB
one backward of dispatch:                    4.0 MiB
one backward of combine:                     8.0 MiB
eager buffers, per rank:                     2.0 MiB
all of it with calls in turn, per rank:      18.0 MiB
all of it, on each node:                     36.0 MiB
op slots, per session:                       256.0 KiB
a routing plan (handle_mem), in the client:  20.0 KiB
staging of this node:                        1.0 GiB, 0 B of it in groups that are there

fits beside what is there
)");
}

TEST(HealthTableTest, NamesTheNodeAndEachGroup) {
  EXPECT_EQ(HealthTable(Parse<HealthReport>(R"pb(
              health: HEALTH_DEGRADED
              problems: "group train lost rank 1"
              services { name: "" status: "SERVING" }
              services { name: "epd.group/train" status: "NOT_SERVING" })pb")),
            R"(degraded
problem: group train lost rank 1

SERVICE          STATUS
(node)           serving
epd.group/train  not-serving
)");
}

TEST(DoctorTableTest, SaysWhatEachProblemMeansAndWhatToDo) {
  EXPECT_EQ(DoctorTable(Parse<DoctorReport>(R"pb(
              local { what: "memory" ok: true found: "20.0 GiB available" }
              daemon {
                what: "libnccl"
                found: "libnccl.so.2: not found"
                consequence: "no unique ids"
                fix: "run deploy/setup"
              })pb")),
            R"(RESULT  CHECK    FOUND                    SEEN BY
ok      memory   20.0 GiB available       epctl
NOT OK  libnccl  libnccl.so.2: not found  epd

libnccl: libnccl.so.2: not found
  means: no unique ids
  do:    run deploy/setup
)");
}

TEST(DrainTableTest, SaysWhatBecameOfTheGroup) {
  EXPECT_EQ(
      DrainTable(Parse<epd::v1::DrainGroupResponse>(R"pb(
        groups {
          spec { name: "train" tenant: "a" }
          state: GROUP_STATE_CLOSED
          epoch: 3
          num_operations: 1000
          num_failed_calls: 4
          num_failed: 2
          bytes_moved: 2048
          counted_by: "n1"
        })pb")),
      "group train tenant=a is drained and closed (epoch 3; on node n1 1,000 operations done, "
      "2 failed, 4 failed calls, 2.0 KiB moved)\n");
}

TEST(ConfigTableTest, SaysWhereEachValueComesFrom) {
  EXPECT_EQ(ConfigTable(Parse<epd::v1::GetConfigResponse>(R"pb(
              settings { name: "pool-bytes" value: "8589934592" origin: "default" help: "Staging." }
              settings { name: "listen" origin: "flag" help: "TCP address." })pb")),
            R"(SETTING     VALUE       FROM
pool-bytes  8589934592  default
listen      -           flag

epd --help explains each; --print-config prints them without a daemon.
)");
}

TEST(VersionTableTest, LeavesOutADaemonThatIsNotThere) {
  EXPECT_EQ(VersionTable(Parse<VersionReport>(R"pb(
              epctl: "0.1.0"
              min_protocol_version: 1
              max_protocol_version: 1)pb")),
            "epctl:  0.1.0 (protocol 1)\n");
  EXPECT_EQ(VersionTable(Parse<VersionReport>(R"pb(
              epctl: "0.1.0"
              min_protocol_version: 1
              max_protocol_version: 1
              connected: true
              daemon: "0.2.0"
              node: "n1"
              daemon_min_protocol_version: 1
              daemon_max_protocol_version: 2)pb")),
            "epctl:  0.1.0 (protocol 1)\nepd:    0.2.0 (protocol 1 to 2) on n1\n");
}

}  // namespace
}  // namespace epd::cli
