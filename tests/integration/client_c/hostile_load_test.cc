// Goal: however many calls some clients have outstanding, another one's waits for a turn of each of them and no more.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "proto/epd/v1/slot_word.h"
#include "proto/epd/v1/slots_view.h"
#include "tests/integration/client_c/harness/hostile_client.h"
#include "tests/integration/client_c/harness/running_daemon.h"

namespace epd::testing {
namespace {

constexpr int kCrowd = 8;

std::unique_ptr<HostileClient> Attached(const RunningDaemon& daemon) {
  auto client = std::make_unique<HostileClient>(features::kTakesManySlots);
  EXPECT_EQ(client->Attach(daemon.socket_path()), "");
  return client;
}

// A request that is refused as soon as it is looked at.
void Arm(const HostileClient& client, uint32_t slot) {
  client.slots().UseGroup(slot / shm::kSlotsOfGroup);
  client.slots().slot(slot).request = {};
  client.slots().word(slot).store(shm::kArmed);
}

bool IsAnswered(const HostileClient& client, uint32_t slot) {
  return shm::Done(client.slots().word(slot).load(std::memory_order_acquire)) != 0;
}

int64_t NumAnswered(const std::vector<std::unique_ptr<HostileClient>>& crowd) {
  int64_t sum = 0;
  for (const auto& client : crowd) {
    for (uint32_t slot = 0; slot < limits::kMaxOpSlots; ++slot) sum += IsAnswered(*client, slot);
  }
  return sum;
}

// The worker stands still until all is armed, so that it finds everything at once.
TEST(HostileLoadTest, ACallWaitsForATurnOfEachOfEightSessionsWithAllTheirSlotsArmed) {
  RunningDaemon daemon({"--slots_per_session=" + std::to_string(limits::kMaxOpSlots)});
  std::vector<std::unique_ptr<HostileClient>> crowd;
  for (int i = 0; i < kCrowd; ++i) crowd.push_back(Attached(daemon));
  const std::unique_ptr<HostileClient> quiet = Attached(daemon);
  // The least of some rounds: in others this process does not run for a while, and the worker does.
  int64_t least = INT64_MAX;
  for (int round = 0; round < 5; ++round) {
    ASSERT_EQ(kill(daemon.worker_pid(), SIGSTOP), 0);
    for (const auto& client : crowd) {
      for (uint32_t slot = 0; slot < limits::kMaxOpSlots; ++slot) Arm(*client, slot);
      client->Ring();
    }
    Arm(*quiet, 0);
    quiet->Ring();
    ASSERT_EQ(kill(daemon.worker_pid(), SIGCONT), 0);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!IsAnswered(*quiet, 0)) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "round " << round;
    }
    least = std::min(least, NumAnswered(crowd));
    ASSERT_TRUE(Eventually(
        20, [&] { return NumAnswered(crowd) == int64_t{kCrowd} * limits::kMaxOpSlots; }));
  }
  // A turn of each, one that had begun, and what the worker does while this process counts.
  EXPECT_LE(least, 4 * kCrowd * 2 * int64_t{shm::kSlotsOfGroup});
}

// Steps of a prepare of one rank, in the session's first slot.
bool Step(const HostileClient& client, shm::Step step, uint64_t execution, uint64_t stage_bytes) {
  const shm::SlotsView slots = client.slots();
  slots.UseGroup(0);
  const uint64_t operation = slots.slot(0).reply.op_id;
  shm::SlotRequest request = {};
  request.step = step;
  request.kind = shm::Kind::kPrepare;
  request.group_id = client.joined().group_id;
  request.epoch = client.joined().epoch;
  request.formation = client.joined().formation;
  request.execution = execution;
  request.top_k = 2;
  request.stage_bytes = stage_bytes;
  if (step != shm::Step::kAnnounce) request.operation.op_id = operation;
  slots.slot(0).request = request;
  slots.word(0).store(shm::kArmed);
  client.Ring();
  return Eventually(20, [&] { return IsAnswered(client, 0); }) &&
         shm::AnswerCode(slots.word(0).load()) == 0;
}

using Clock = std::chrono::steady_clock;

// Until it is answered.
Clock::duration TimeOfACall(const HostileClient& client) {
  const Clock::time_point begin = Clock::now();
  Arm(client, 0);
  client.Ring();
  while (!IsAnswered(client, 0) && Clock::now() < begin + std::chrono::seconds(20)) {
  }
  return Clock::now() - begin;
}

TEST(HostileLoadTest, ACallDoesNotWaitForThePagesOfOthersThatTakeMostOfThePoolInTurn) {
  constexpr uint64_t kMost = uint64_t{400} << 20;
  RunningDaemon daemon({"--slots_per_session=" + std::to_string(limits::kMaxOpSlots),
                        "--staging_bytes=" + std::to_string(kMost * 5 / 4)});
  const std::unique_ptr<HostileClient> quiet = Attached(daemon);
  std::vector<std::unique_ptr<HostileClient>> takers;
  for (int i = 0; i < 2; ++i) {
    takers.push_back(Attached(daemon));
    ASSERT_EQ(takers.back()->Join(/*worker_executor=*/false, "taker" + std::to_string(i)), "");
  }
  // How much of the time in which a taker's pages are made, and the other one's given back, a call waits at most. The least of
  // some rounds: in others this process does not run for a while, and the worker does.
  double least = 1;
  for (uint64_t round = 0; round < 4; ++round) {
    for (const auto& taker : takers) {
      std::atomic<bool> over = false;
      bool good = false;
      const Clock::time_point begin = Clock::now();
      std::thread taking([&] {
        good = Step(*taker, shm::Step::kAnnounce, round, kMost);
        over = true;
      });
      Clock::duration most = {};
      while (!over) most = std::max(most, TimeOfACall(*quiet));
      taking.join();
      const std::chrono::duration<double> all = Clock::now() - begin;
      least = std::min(least, std::chrono::duration<double>(most) / all);
      ASSERT_TRUE(good) << "round " << round;
      ASSERT_TRUE(Step(*taker, shm::Step::kPublish, round, kMost));
      ASSERT_TRUE(Step(*taker, shm::Step::kPulled, round, kMost));
    }
  }
  // In one go it is nearly all.
  EXPECT_LT(least, 0.3);
  RecordProperty("share", std::to_string(least));
  std::cout << "a call waits for " << least << " of the time\n";
}

}  // namespace
}  // namespace epd::testing
