// Goal: whatever a client writes into the memory that it shares with the daemon, only its own calls
// suffer: a healthy pair's exchanges stay right, and epd and its worker live on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <random>
#include <string>
#include <tuple>

#include "proto/epd/v1/slot_word.h"
#include "proto/epd/v1/slots_view.h"
#include "tests/integration/client_c/harness/hostile_client.h"
#include "tests/integration/client_c/harness/rank_process.h"
#include "tests/integration/client_c/harness/running_daemon.h"
#include "tests/seed/seed.h"

namespace epd::testing {
namespace {

using ::testing::Each;

constexpr int kRounds = 300;

template <typename Value>
void FillRandomly(std::mt19937_64& random, Value* value) {
  auto* bytes = reinterpret_cast<unsigned char*>(value);
  for (size_t i = 0; i < sizeof *value; ++i) bytes[i] = static_cast<unsigned char>(random());
}

// A request that gets past the first checks, with some fields that lie.
shm::SlotRequest Plausible(std::mt19937_64& random, const client::Joined& own, uint64_t victim) {
  const auto any_of = [&](std::initializer_list<uint64_t> values) {
    return values.begin()[random() % values.size()];
  };
  shm::SlotRequest request = {};
  request.step = static_cast<shm::Step>(any_of({1, 1, 1, 2, 3, 4, 5, 6, 7, 0, 77}));
  request.kind = static_cast<shm::Kind>(any_of({1, 2, 3, 4, 5, 0, 99}));
  request.group_id = any_of({own.group_id, own.group_id, victim, random()});
  request.epoch = any_of({own.epoch, own.epoch, own.epoch + 1, random()});
  request.formation = any_of({own.formation, own.formation, random()});
  request.rank = static_cast<uint32_t>(any_of({0, 0, 0, 1, ~0ull}));
  request.plan_bytes = static_cast<uint32_t>(any_of({0, 4096, 0xffffffff}));
  request.execution = any_of({0, 1, random() % 100, ~0ull, ~0ull - 1});
  request.ordinal = static_cast<uint32_t>(random() % 4);
  request.has_name = static_cast<uint32_t>(any_of({0, 1, 0xffffffff}));
  request.error_code = static_cast<uint32_t>(any_of({0, 0, 0, 3, 17, 0xffffffff}));
  request.dtype = static_cast<uint32_t>(any_of({0, 1, 2, 0xffffffff}));
  request.has_weights = static_cast<uint32_t>(any_of({0, 1, 7}));
  request.top_k = static_cast<uint32_t>(any_of({0, 1, 2, 0xffffffff}));
  request.alignment = static_cast<uint32_t>(any_of({0, 1, 3, 0xffffffff}));
  request.row_bytes = any_of({0, 64, 1, ~0ull});
  request.num_tokens = any_of({0, 8, ~0ull});
  request.recv_capacity = any_of({0, 16, ~0ull});
  request.stage_bytes = any_of({0, 4096, 1ull << 20, 1ull << 40, ~0ull, ~0ull - 4095});
  request.out_bytes = any_of({0, 4096, 1ull << 40, ~0ull});
  const uint64_t number = any_of({0, 1, 2, 3, random() % 1000, random()});
  if (shm::IsAnnounce(request.step)) {
    request.announce.demand = any_of({0, 16, ~0ull});
    request.announce.eager_buffer = static_cast<uint32_t>(number);
    std::memset(request.announce.name, 'x', sizeof request.announce.name);  // Not terminated.
  } else if (shm::IsStreamStep(request.step)) {
    request.stream.announce_slot = static_cast<uint32_t>(number);
    request.stream.move_report = any_of({0, random(), ~0ull});
  } else {
    request.operation.op_id = number;
  }
  std::memset(request.error, 'x', sizeof request.error);  // Nor is this.
  return request;
}

// Writes until it is killed; says "wrote" after the first kRounds.
std::string WriteGarbage(const std::string& path, bool worker_executor, uint64_t features,
                         uint64_t victim, uint64_t seed, Link& link) {
  HostileClient client(features);
  if (std::string p = client.Attach(path); !p.empty()) return p;
  if (std::string p = client.Join(worker_executor); !p.empty()) return p;
  std::mt19937_64 random(seed);
  const shm::SlotsView slots = client.slots();
  for (int round = 0;; ++round) {
    for (uint32_t n = 0; n < shm::kSlotsPerSession; ++n) {
      const auto i = static_cast<uint32_t>(random() % slots.num_slots());
      slots.UseGroup(i / shm::kSlotsOfGroup);
      shm::Slot& slot = slots.slot(i);
      if (random() % 4 == 0) {
        FillRandomly(random, &slot.request);
      } else {
        slot.request = Plausible(random, client.joined(), victim);
      }
      // Mostly a proper arm, also over a use that is open; else any word.
      slots.word(i).store(random() % 4 != 0 ? shm::kArmed : random());
    }
    if (round % 8 == 7) {
      const uint64_t ended = random();
      shm::SlotsHeader& header = slots.header();
      header.ended.store(static_cast<uint32_t>(ended));
      header.asleep.store(static_cast<uint32_t>(ended >> 32));
      header.magic = random();
      header.session_id = random();
      FillRandomly(random, &header.areas);
      header.num_areas = static_cast<uint32_t>(random());
      header.used_groups = random() | random();
      for (auto& marks : header.streamed_of_many) marks = random();
    }
    client.Ring();
    if (round == kRounds) link.Say("wrote");
  }
}

// By who moves the rows, and what the hostile client says that it takes.
class HostileSlotsTest : public ::testing::TestWithParam<std::tuple<bool, uint64_t>> {};

TEST_P(HostileSlotsTest, GarbageInItsOwnSlotsHurtsNobodyElse) {
  const uint64_t seed = TestSeed();
  const auto [worker_executor, features] = GetParam();
  RunningDaemon daemon({"--slots_per_session=" + std::to_string(limits::kMaxOpSlots)});
  const pid_t worker = daemon.worker_pid();
  const ExchangeCase c{.num_ranks = 2, .worker_executor = worker_executor};
  const auto healthy = [](JoinedRank& joined, Link& link) -> std::string {
    link.Say(std::to_string(joined.rank->Info().group_id));
    link.Hear();
    for (int step = 0; step < 100; ++step) {
      const std::string problem = joined.rank->RunAndCompare(joined.data);
      if (!problem.empty()) return "step " + std::to_string(step) + ": " + problem;
    }
    link.Say("meanwhile");
    link.Hear();
    return joined.rank->RunAndCompare(joined.data);
  };
  auto ranks = StartRanks(daemon.socket_path(), c, healthy);
  uint64_t group_id = 0;
  for (const auto& rank : ranks) group_id = std::stoull(rank->link().Hear());
  RankProcess hostile([&, executor = worker_executor, takes = features](Link& link) {
    return WriteGarbage(daemon.socket_path(), executor, takes, group_id, seed, link);
  });
  for (const auto& rank : ranks) rank->link().Say("go");
  for (const auto& rank : ranks) EXPECT_EQ(rank->link().Hear(), "meanwhile");
  EXPECT_EQ(hostile.link().Hear(), "wrote");
  hostile.Kill();
  for (const auto& rank : ranks) rank->link().Say("go");
  EXPECT_THAT(FinishAll(ranks), Each(""));
  EXPECT_EQ(kill(worker, 0), 0);
  EXPECT_EQ(daemon.worker_pid(), worker) << "the worker was never replaced";
  auto fresh = StartRanks(
      daemon.socket_path(), c,
      [](JoinedRank& joined, Link&) { return joined.rank->RunAndCompare(joined.data); },
      JoinOptions{.group = "fresh"});
  EXPECT_THAT(FinishAll(fresh), Each(""));
}

INSTANTIATE_TEST_SUITE_P(Executors, HostileSlotsTest,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(0, features::kTakesManySlots)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param) ? "worker" : "client") +
                                  (std::get<1>(test.param) == 0 ? "" : "ManySlots");
                         });

}  // namespace
}  // namespace epd::testing
