// Goal: wherever in a call memory runs out, the call is an error like others: the group knows that it has ended, its slot comes
// back, and what could not be published as a whole is not published.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "client/c/direct_call.h"
#include "client/c/slot_pool.h"
#include "client/c/unique_fd.h"
#include "tests/fakes/failing_memory.h"
#include "tests/fakes/fake_daemon.h"
#include "tests/integration/client_c/harness/client_rank.h"
#include "tests/integration/client_c/harness/exchange_case.h"

namespace epd::client {
namespace {

using testing::ClientRank;
using testing::Connect;
using testing::ExchangeCase;
using testing::RankData;
using testing::Result;
using testing::t_allocations_left;

// Whether allocation `count` of what `step` does was asked for, and so failed.
template <typename Step>
bool Fails(int64_t count, const Step& step) {
  t_allocations_left = count;
  try {
    step();
  } catch (const std::bad_alloc&) {
  }
  const bool failed = t_allocations_left < 0;
  t_allocations_left = -1;
  return failed;
}

TEST(OutOfMemoryTest, ACallIsAnErrorWhoseSlotComesBackAndNothingIsInFlight) {
  fakes::FakeDaemon daemon;
  const ExchangeCase c = {.num_ranks = 1, .num_experts = 3};
  epd_client* client = nullptr;
  ASSERT_TRUE(Connect(daemon.socket_path(), &client).ok());
  const std::vector<RankData> data = testing::MakeExchange(c);
  ClientRank rank(client, c, 0);
  ASSERT_TRUE(rank.Join({}).ok());
  ASSERT_TRUE(rank.Prepare(data[0]).ok());
  int64_t count = 0;
  int num_errors = 0;
  for (bool failed = true; failed; ++count) {
    failed = Fails(count, [&] {
      const Result r = rank.Dispatch(data[0]);
      if (r.ok()) return;
      EXPECT_EQ(r.code, static_cast<int>(Code::kResourceExhausted)) << r.message;
      ++num_errors;
    });
  }
  EXPECT_GT(num_errors, 5);
  for (int step = 0; step < 400; ++step) ASSERT_EQ(rank.RunAndCompare(data[0]), "");
  EXPECT_TRUE(rank.Leave().ok()) << "a call is still in flight";
  epd_disconnect(client);
}

TEST(OutOfMemoryTest, SlotsComeBackWithoutMemory) {
  const auto segment = std::make_unique<shm::SlotsSegment>();
  SlotPool pool(shm::SlotsView::Of(segment.get(), {}), -1);
  std::vector<int> slots;
  for (int slot = pool.Acquire(); slot >= 0; slot = pool.Acquire()) slots.push_back(slot);
  ASSERT_GT(slots.size(), 10u);
  std::vector<std::function<bool()>> is_free(slots.size(), [] { return true; });
  EXPECT_FALSE(Fails(0, [&] {
    for (size_t i = 0; i < slots.size(); ++i) {
      if (i % 2 == 0) {
        pool.Retire(slots[i]);
      } else {
        pool.RetireUntil(slots[i], std::move(is_free[i]));
      }
    }
  }));
  for (size_t i = 0; i < slots.size(); ++i) ASSERT_GE(pool.Acquire(), 0);
}

// One rank's arena.
struct Arena {
  Arena() {
    constexpr uint64_t kBytes = 4096 + sizeof(shm::DirectTail);
    const UniqueFd fd(memfd_create("arena", MFD_ALLOW_SEALING));
    EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(kBytes)), 0);
    EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
    auto mapping = std::make_shared<Mapping>();
    EXPECT_TRUE(Mapping::Map(fd.get(), kBytes, true, mapping.get()).ok());
    tail = reinterpret_cast<shm::DirectTail*>(mapping->data() + 4096);
    tail->area.gate = shm::DirectGate(1, 0);
    formation.arenas.push_back({.mapping = std::move(mapping), .own = true});
  }
  Formation formation;
  shm::DirectTail* tail = nullptr;
};

TEST(OutOfMemoryTest, ACallIsPublishedAsAWholeOrNot) {
  const auto segment = std::make_unique<shm::SlotsSegment>();
  SlotPool pool(shm::SlotsView::Of(segment.get(), {}), -1);
  Arena arena;
  const DirectPrograms::Turn turn = {.execution = 1, .generation = 1};
  bool failed = true;
  for (int64_t count = 0; failed; ++count) {
    DirectCall call(arena.formation, 0, pool);
    shm::SlotRequest request = {};
    request.kind = shm::Kind::kDispatch;
    bool published = false;
    failed = Fails(
        count, [&] { published = call.Publish(request, turn, {.name = "call", .routes = {}}); });
    EXPECT_EQ(published, !failed);
    EXPECT_EQ(shm::GateCount(arena.tail->area.gate), published ? 1u : 0u);
  }
}

}  // namespace
}  // namespace epd::client
