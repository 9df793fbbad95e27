// Goal: a session's slots are registered once for all its groups, and no session waits while the driver pins or unpins those
// of another one; who comes behind the last holder of its own waits until they are unregistered.
#include "client/cuda/registered_slots.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "tests/fakes/cuda/fake_driver.h"

namespace epd::client {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

// The fake is behind one lock, so what is held is held in front of it.
const cuda::DriverTable* g_fake = nullptr;
std::atomic<const char*> g_held_call = nullptr;
std::atomic<void*> g_held_memory = nullptr;
std::atomic<int> g_num_held = 0;

void HoldUp(const char* call, void* memory) {
  if (g_held_call != call || g_held_memory != memory) return;
  ++g_num_held;
  while (g_held_memory == memory) std::this_thread::yield();
}

constexpr char kRegister[] = "register";
constexpr char kUnregister[] = "unregister";

class RegisteredSlotsTest : public ::testing::Test {
 protected:
  RegisteredSlotsTest() : table_(driver_.table()) {
    g_fake = &driver_.table();
    table_.host_register = [](void* memory, size_t bytes, unsigned flags) {
      HoldUp(kRegister, memory);
      return g_fake->host_register(memory, bytes, flags);
    };
    table_.host_unregister = [](void* memory) {
      HoldUp(kUnregister, memory);
      return g_fake->host_unregister(memory);
    };
    EXPECT_EQ(table_.init(0), cuda::kSuccess);
    cuda::Context context = nullptr;
    EXPECT_EQ(table_.primary_context_retain(&context, 0), cuda::kSuccess);
    EXPECT_EQ(table_.context_set_current(context), cuda::kSuccess);
    for (auto& pool : pools_) {
      const auto layout = shm::SlotsLayout::For(features::kTakesManySlots, shm::kSlotsPerSession);
      void* const data =
          mmap(nullptr, layout.bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
      EXPECT_NE(data, MAP_FAILED);
      pool = std::make_shared<SlotPool>(shm::SlotsView::Create(data, 1, /*incarnation=*/0, layout),
                                        eventfd(0, EFD_NONBLOCK));
    }
  }
  ~RegisteredSlotsTest() override {
    table_.primary_context_release(0);
    EXPECT_EQ(driver_.Leaks(), "");
    EXPECT_THAT(driver_.violations(), ::testing::IsEmpty());
  }

  std::shared_ptr<RegisteredSlots> Create(int session) {
    std::shared_ptr<RegisteredSlots> slots;
    const Status made = RegisteredSlots::Create(table_, pools_[session], &slots);
    EXPECT_TRUE(made.ok()) << made.message;
    return slots;
  }
  // `act` in a thread, which comes to the call of that session's and stays there until LetGo.
  template <typename Act>
  auto Hold(const char* call, int session, Act act) {
    g_num_held = 0;
    g_held_call = call;
    g_held_memory = &pools_[session]->view().header();
    auto held = std::async(std::launch::async, act);
    while (g_num_held == 0) std::this_thread::yield();
    return held;
  }
  static void LetGo() { g_held_memory = nullptr; }

  cuda::FakeDriver driver_;
  cuda::DriverTable table_;
  std::shared_ptr<SlotPool> pools_[2];
};

TEST_F(RegisteredSlotsTest, AreRegisteredOnceForAllGroupsOfASession) {
  const auto first = Create(0);
  EXPECT_EQ(Create(0), first);
  EXPECT_EQ(driver_.CountCalls("cuMemHostRegister"), 1);
}

TEST_F(RegisteredSlotsTest, OfOneSessionAreThereWhileThoseOfAnotherAreBeingRegistered) {
  auto held = Hold(kRegister, 0, [this] { return Create(0); });
  auto other = std::async(std::launch::async, [this] { return Create(1); });
  EXPECT_EQ(other.wait_for(seconds(10)), std::future_status::ready);
  LetGo();
  EXPECT_NE(other.get(), held.get());
}

TEST_F(RegisteredSlotsTest, OfOneSessionAreThereWhileThoseOfAnotherAreBeingUnregistered) {
  auto held = Hold(kUnregister, 0, [this] { Create(0).reset(); });
  auto other = std::async(std::launch::async, [this] { return Create(1); });
  EXPECT_EQ(other.wait_for(seconds(10)), std::future_status::ready);
  LetGo();
  held.get();
}

TEST_F(RegisteredSlotsTest, AreRegisteredAnewOnceTheLastHolderHasUnregisteredThem) {
  auto held = Hold(kUnregister, 0, [this] { Create(0).reset(); });
  auto again = std::async(std::launch::async, [this] { return Create(0); });
  EXPECT_EQ(again.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  EXPECT_EQ(driver_.CountCalls("cuMemHostRegister"), 1);
  LetGo();
  held.get();
  EXPECT_NE(again.get(), nullptr);
  EXPECT_EQ(driver_.CountCalls("cuMemHostRegister"), 2);
}

TEST_F(RegisteredSlotsTest, ThatTheDriverRefusesAreAnErrorAndMayBeTriedAgain) {
  for (const char* call : {"cuMemHostRegister", "cuMemHostGetDevicePointer"}) {
    driver_.Fail(call, 2);
    std::shared_ptr<RegisteredSlots> slots;
    const Status made = RegisteredSlots::Create(table_, pools_[0], &slots);
    EXPECT_EQ(made.code, Code::kFailedPrecondition);
    EXPECT_THAT(made.message, HasSubstr(call));
  }
  EXPECT_NE(Create(0), nullptr);
}

}  // namespace
}  // namespace epd::client
