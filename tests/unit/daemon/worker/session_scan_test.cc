// Goal: what one session arms makes no other one wait for long, nothing that is armed is left, and a session for whose slots
// there is no memory is refused by itself.
#include "daemon/worker/shell/session_scan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "daemon/core/unique_fd.h"
#include "daemon/worker/shell/outcome_records.h"
#include "proto/epd/v1/slot_word.h"
#include "proto/epd/v1/slots_view.h"

namespace epd {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::SizeIs;
using testing::UnorderedElementsAre;

constexpr uint32_t kSlots = limits::kMaxOpSlots;
// What a session may have taken before another one is looked at: up to the end of a group.
constexpr int kTurn = SessionScan::kTakenOfSession + static_cast<int>(shm::kSlotsOfGroup) - 1;

int MakeFile(uint64_t bytes) {
  const int fd = memfd_create("session_scan_test", MFD_CLOEXEC);
  EXPECT_EQ(ftruncate(fd, static_cast<off_t>(bytes)), 0);
  return fd;
}

OutcomeRecords MakeRecords(const UniqueFd& fd) {
  void* const data =
      mmap(nullptr, sizeof(shm::RecordsHeader), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  shm::RecordsView::Create(data, kSlots);
  munmap(data, sizeof(shm::RecordsHeader));
  auto opened = OutcomeRecords::Open(fd);
  EXPECT_TRUE(opened.ok()) << opened.status();
  return *std::move(opened);
}

// A client's side of its slots, which nobody seals.
class Client {
 public:
  explicit Client(uint64_t session)
      : session_(session), fd_(MakeFile(kLayout.bytes())), view_(Map()) {}
  ~Client() { munmap(&view_.header(), kLayout.bytes()); }
  Client(const Client&) = delete;

  SessionId session() const { return SessionId(session_); }
  const UniqueFd& fd() const { return fd_; }
  void Arm(uint32_t slot) {
    view_.UseGroup(slot / shm::kSlotsOfGroup);
    view_.word(slot) = shm::kArmed;
    if (!view_.IsStreamed(slot)) view_.armed(slot / shm::kSlotsOfGroup) |= Bit(slot);
  }
  void ArmAll() {
    for (uint32_t slot = 0; slot < kSlots; ++slot) Arm(slot);
  }
  void SetStreamed(uint32_t slot) { view_.streamed(slot / shm::kSlotsOfGroup) |= Bit(slot); }
  // There is no memory for slots from `first` on.
  void LoseSlotsFrom(uint32_t first) {
    EXPECT_EQ(ftruncate(fd_.get(), static_cast<off_t>(view_.OffsetOfSlot(first))), 0);
  }

 private:
  static constexpr shm::SlotsLayout kLayout =
      shm::SlotsLayout::For(features::kTakesManySlots, kSlots);
  static uint64_t Bit(uint32_t slot) { return uint64_t{1} << (slot % shm::kSlotsOfGroup); }
  shm::SlotsView Map() {
    void* const data =
        mmap(nullptr, kLayout.bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
    return shm::SlotsView::Create(data, session_, 1, kLayout);
  }

  const uint64_t session_;
  const UniqueFd fd_;
  const shm::SlotsView view_;
};

class SessionScanTest : public testing::Test {
 protected:
  Client& Add(uint32_t uid = 1000, bool has_device = true) {
    const uint64_t id = ++last_id_;
    Client& client = *(clients_[id] = std::make_unique<Client>(id));
    auto opened = SessionSlots::Open({.session = client.session(),
                                      .uid = uid,
                                      .record_index = static_cast<uint32_t>(id) % 1000,
                                      .has_device = has_device},
                                     client.fd(), UniqueFd(), records_);
    EXPECT_TRUE(opened.ok()) << opened.status();
    const auto session = sessions_.emplace(client.session(), *std::move(opened)).first;
    scan_.Add(client.session(), uid, session->second);
    return client;
  }
  void Remove(uint64_t id) {
    scan_.Remove(SessionId(id));
    sessions_.erase(SessionId(id));
    clients_.erase(id);
  }
  // A turn. Who was taken from, in this order; all that were ever taken stand in taken_.
  std::vector<uint64_t> Turn() {
    std::vector<uint64_t> from;
    const auto unserved = scan_.Take([&](const Submission& submission, const shm::SlotRequest&) {
      from.push_back(submission.session.value);
      touched_.push_back(Touched());
      const bool first = taken_[submission.session.value].insert(submission.slot).second;
      EXPECT_TRUE(first) << "slot " << submission.slot << " was taken twice";
      return parts_of_each_;
    });
    for (const EvictSession& session : unserved) unserved_.push_back(session);
    return from;
  }

  // As epd sees it.
  uint64_t Touched() const {
    uint64_t user = 0;
    EXPECT_EQ(pread(records_fd_.get(), &user, sizeof user, offsetof(shm::RecordsHeader, touched)),
              static_cast<ssize_t>(sizeof user));
    return user;
  }

  uint64_t last_id_ = 0;
  const UniqueFd records_fd_{MakeFile(shm::RecordsView::BytesFor(kSlots))};
  OutcomeRecords records_ = MakeRecords(records_fd_);
  std::vector<uint64_t> touched_;  // RecordsHeader::touched, as each submission was taken.
  std::map<uint64_t, std::unique_ptr<Client>> clients_;
  SessionTable sessions_;
  SessionScan scan_;
  size_t parts_of_each_ = 1;
  std::map<uint64_t, std::set<uint32_t>> taken_;
  std::vector<EvictSession> unserved_;
};

TEST_F(SessionScanTest, EpdSeesWhoseMemoryIsTouchedAndOfNobodyInBetween) {
  Add(1001).Arm(0);
  Add(1002).Arm(0);
  Turn();
  EXPECT_THAT(touched_, UnorderedElementsAre(shm::TouchedBy(1001), shm::TouchedBy(1002)));
  EXPECT_EQ(Touched(), 0u);
  {
    const TouchedUser::Scope outer(records_.touched_user(), 1001);
    {
      const TouchedUser::Scope inner(records_.touched_user(), 1002);
      EXPECT_EQ(Touched(), shm::TouchedBy(1002));
    }
    EXPECT_EQ(Touched(), shm::TouchedBy(1001));
    // As where the worker is killed there and another one begins.
    ASSERT_TRUE(OutcomeRecords::Open(records_fd_).ok());
    EXPECT_EQ(Touched(), 0u);
  }
}

TEST_F(SessionScanTest, EightSessionsThatArmAllTheirSlotsMakeANinthWaitForOneRoundOfTheirTurns) {
  for (int i = 0; i < 8; ++i) Add().ArmAll();
  Client& quiet = Add();
  // Wherever the scan stands when it arms.
  for (uint32_t slot = 0; slot < 10; ++slot) {
    quiet.Arm(slot);
    int before = 0;
    while (taken_[9].size() == slot) {
      const std::vector<uint64_t> from = Turn();
      before += static_cast<int>(std::find(from.begin(), from.end(), 9u) - from.begin());
      ASSERT_LE(before, 8 * kTurn);
    }
  }
}

TEST_F(SessionScanTest, ATurnEndsAndTheNextOneGoesOnWithTheNextSession) {
  for (int i = 0; i < 40; ++i) Add().ArmAll();
  std::set<uint64_t> seen;
  while (seen.size() < 40) {
    const std::vector<uint64_t> from = Turn();
    ASSERT_LE(from.size(), size_t{SessionScan::kTakenOfTurn + kTurn});
    const std::set<uint64_t> of_turn(from.begin(), from.end());
    for (const uint64_t session : of_turn) ASSERT_TRUE(seen.insert(session).second);
  }
}

// Announces of groups of 1,024 ranks: to open an operation of one costs what its ranks do.
TEST_F(SessionScanTest, ATurnTakesFewerSubmissionsOfLargeGroups) {
  for (int i = 0; i < 8; ++i) Add().ArmAll();
  for (const size_t num_ranks : {1u, 64u, 1024u, 4096u}) {
    parts_of_each_ = num_ranks;
    const size_t at_most = SessionScan::kPartsOfTurn / num_ranks;
    const size_t taken = Turn().size();
    EXPECT_LE(taken, std::min<size_t>(at_most, SessionScan::kTakenOfTurn) + kTurn) << num_ranks;
    EXPECT_GE(taken, std::min<size_t>(at_most, SessionScan::kTakenOfTurn)) << num_ranks;
  }
}

TEST_F(SessionScanTest, SessionsThatComeAndGoKeepTheScanFromNobody) {
  Client& old = Add();
  for (int i = 0; i < 8; ++i) Add().ArmAll();
  for (int call = 0; call < 5; ++call) {
    old.Arm(static_cast<uint32_t>(call));
    const size_t before = taken_[1].size();
    for (int turn = 0; taken_[1].size() == before; ++turn) {
      ASSERT_LE(turn, 2);
      // As many as a turn looks at, in place of the eldest of them.
      for (int i = 0; i < 8; ++i) {
        Add().ArmAll();
        Remove(last_id_ - 8);
      }
      Turn();
    }
  }
}

TEST_F(SessionScanTest, NothingTakenMeansThatNothingWasArmedWhoeverHasJustCome) {
  for (int i = 0; i < 5; ++i) Add();
  for (int round = 0; round < 20; ++round) {
    Turn();
    if (round % 3 == 0) Add(round % 2 == 0 ? 1000 : 1001);
    const auto id = static_cast<uint64_t>(round) % last_id_ + 1;
    clients_[id]->Arm(static_cast<uint32_t>(round));
    EXPECT_THAT(Turn(), testing::ElementsAre(id)) << round;
  }
}

TEST_F(SessionScanTest, AUsersCallWaitsForOneSessionOfEachOtherUser) {
  for (int i = 0; i < 40; ++i) Add(1000).ArmAll();
  Client& other = Add(1001);
  for (uint32_t slot = 0; slot < 10; ++slot) {
    other.Arm(slot);
    int before = 0;
    while (taken_[41].size() == slot) {
      const std::vector<uint64_t> from = Turn();
      before += static_cast<int>(std::find(from.begin(), from.end(), 41u) - from.begin());
      ASSERT_LE(before, kTurn);
    }
  }
}

TEST_F(SessionScanTest, WhereThereIsNoDeviceNoStreamArmsASlot) {
  Client& client = Add(1000, /*has_device=*/false);
  client.SetStreamed(5);
  client.Arm(5);
  EXPECT_THAT(Turn(), SizeIs(0));
  EXPECT_FALSE(sessions_.at(client.session()).has_streams());
}

TEST_F(SessionScanTest, AllThatIsArmedIsTakenOnceAndThenNothing) {
  for (int i = 0; i < 3; ++i) Add().ArmAll();
  while (!Turn().empty()) {
  }
  EXPECT_THAT(taken_, SizeIs(3));
  for (const auto& [session, slots] : taken_) EXPECT_THAT(slots, SizeIs(kSlots));
  clients_[2]->Arm(77);
  taken_.clear();
  EXPECT_THAT(Turn(), testing::ElementsAre(2));
}

TEST_F(SessionScanTest, WhatWasArmedBeforeTheWorkerCameIsMarkedAndTaken) {
  Client& client = Add();
  client.SetStreamed(5);
  client.Arm(5);
  Client& other = Add();
  for (const uint32_t slot : {0u, 63u, 64u, 4095u}) {
    other.SetStreamed(slot);  // Arm marks nothing then.
    other.Arm(slot);
  }
  for (auto& [unused, session] : sessions_) session.MarkArmed();
  Turn();
  EXPECT_EQ(taken_[1], std::set<uint32_t>({5}));
  EXPECT_EQ(taken_[2], std::set<uint32_t>({0, 63, 64, 4095}));
}

// stream_sites.h: a site's three slots are in one group, and what is armed of them is claimed in one pass.
TEST_F(SessionScanTest, AGroupOfSlotsIsTakenAsAWhole) {
  Client& client = Add();
  for (uint32_t slot = 0; slot < kSlots; ++slot) client.SetStreamed(slot);
  client.ArmAll();
  for (std::vector<uint64_t> from = Turn(); !from.empty(); from = Turn()) {
    EXPECT_EQ(from.size() % shm::kSlotsOfGroup, 0u);
    std::map<uint32_t, uint32_t> of_group;
    for (const uint32_t slot : taken_[1]) ++of_group[slot / shm::kSlotsOfGroup];
    for (const auto& [group, count] : of_group) EXPECT_EQ(count, shm::kSlotsOfGroup) << group;
  }
}

TEST_F(SessionScanTest, ASessionWithoutMemoryForASlotIsRefusedOnceAndOthersGoOn) {
  Client& poor = Add();
  Client& other = Add();
  poor.Arm(3);
  EXPECT_THAT(Turn(), Each(1));
  poor.LoseSlotsFrom(64);
  poor.Arm(100);  // It has armed what it has never written to.
  other.Arm(1);
  EXPECT_THAT(Turn(), Each(2));
  other.Arm(2);
  poor.Arm(101);
  EXPECT_THAT(Turn(), Each(2));
  ASSERT_THAT(unserved_, SizeIs(1));
  EXPECT_EQ(unserved_[0].session, poor.session());
  EXPECT_EQ(unserved_[0].cause.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(unserved_[0].cause.message()),
              HasSubstr("session 1 has op slots without pages: no memory for 4096 bytes"));
  // Of those that it did take, and of those that it could not.
  sessions_.at(poor.session()).AbortOpenSubmissions(absl::AbortedError("the worker stops"));
}

TEST_F(SessionScanTest, ASessionThatTakesASlotsPageAwayEndsByItselfAndOthersGoOn) {
  Client& hostile = Add();
  Client& other = Add();
  hostile.Arm(3);
  EXPECT_THAT(Turn(), Each(1));
  hostile.Arm(100);
  EXPECT_THAT(Turn(), Each(1));
  hostile.LoseSlotsFrom(64);
  other.Arm(1);
  sessions_.at(hostile.session()).AbortOpenSubmissions(absl::AbortedError("x"));
  EXPECT_THAT(Turn(), Each(2));
  ASSERT_THAT(unserved_, SizeIs(1));
  EXPECT_EQ(unserved_[0].session, hostile.session());
  EXPECT_THAT(std::string(unserved_[0].cause.message()),
              HasSubstr("session 1 has op slots without pages: somebody has taken one away"));
}

}  // namespace
}  // namespace epd
