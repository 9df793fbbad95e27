// Goal: however many calls some clients have outstanding, another one's waits for a turn of each of them and no more.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <memory>
#include <string>
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

}  // namespace
}  // namespace epd::testing
