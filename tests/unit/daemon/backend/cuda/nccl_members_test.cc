// Goal: workers whose rows go by NCCL move them with the bits that the CPU backend gives, in one message per rank and peer,
// and of a combine no byte goes that no rank reads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/fakes/cuda/nccl_mail.h"
#include "tests/unit/daemon/backend/cuda/direct_members_harness.h"

namespace epd::cuda {
namespace {

using ::testing::Each;
using ::testing::IsEmpty;

const absl::Status kGood = absl::OkStatus();

// What all members have sent.
std::atomic<int> g_sends;
std::atomic<uint64_t> g_bytes;

class NcclMembers : public DirectMembers {
 protected:
  NcclMembers() {
    by_nccl_ = 0;
    char name[] = "/tmp/nccl-members-XXXXXX";
    folder_ =
        std::shared_ptr<std::string>(new std::string(mkdtemp(name)), [](const std::string* folder) {
          std::filesystem::remove_all(*folder);
          delete folder;
        });
    // Communicators end behind this fixture.
    UseNcclMail({.folder = *folder_,
                 .put = [this, folder = folder_](
                            Stream stream,
                            std::function<bool()> run) { driver_->Put(stream, std::move(run)); },
                 .violation = [](const std::string& what) { ADD_FAILURE() << what; }});
  }
  NcclTable Nccl() override {
    NcclTable table = NcclMailTable();
    table.send = +[](const void* from, size_t bytes, int type, int peer, NcclComm comm, Stream to) {
      ++g_sends;
      g_bytes += bytes;
      return NcclMailTable().send(from, bytes, type, peer, comm, to);
    };
    return table;
  }
  std::string NcclId() override {
    NcclUniqueId id = {};
    EXPECT_EQ(MakeNcclMailId(&id), kNcclSuccess);
    return {id.bytes, sizeof id.bytes};
  }
  void FormByNccl(const Node& node) {
    Form(node);
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while (!::testing::Matches(Each(kGood))(Formed()) && absl::Now() < deadline) {
      std::this_thread::yield();
    }
    ASSERT_THAT(Formed(), Each(kGood));
  }
  void MoveCounted() {
    g_sends = 0;
    g_bytes = 0;
    ASSERT_THAT(Move(), Each(kGood));
  }

  int MemberOf(size_t rank) const { return node_.member_of_rank[rank]; }
  // Routes of all ranks of a member to the experts of a rank of another one.
  uint64_t RowsFor(size_t owner, int member) const {
    uint64_t rows = 0;
    for (size_t r = 0; r < num_ranks(); ++r) {
      if (MemberOf(r) != member) continue;
      for (const int64_t expert : problem_.topk[r]) {
        rows += expert >= 0 &&
                problem_.owner[static_cast<size_t>(expert)] == static_cast<int32_t>(owner);
      }
    }
    return rows;
  }
  // Messages of a gather, and their bytes.
  std::pair<int, uint64_t> Gathered(bool has_weights) const {
    std::pair<int, uint64_t> all = {0, 0};
    for (size_t owner = 0; owner < num_ranks(); ++owner) {
      for (int member = 0; member < static_cast<int>(workers_.size()); ++member) {
        const uint64_t rows = RowsFor(owner, member);
        if (member == MemberOf(owner) || rows == 0) continue;
        ++all.first;
        all.second += shm::OutBytes(rows * kRowBytes, has_weights ? rows : 0);
      }
    }
    return all;
  }

  std::shared_ptr<std::string> folder_;
};

class NcclMembersOn : public NcclMembers, public ::testing::WithParamInterface<Node> {};
INSTANTIATE_TEST_SUITE_P(
    Nodes, NcclMembersOn,
    ::testing::Values(OneRankEach({0, 1}), OneRankEach({0, 1, 2, 3, 4, 5, 6, 7}),
                      Node{.devices = {0, 1}, .member_of_rank = {0, 1, 0, 1}},
                      Node{.devices = {2, 0, 1}, .member_of_rank = {0, 0, 1, 2, 0, 1, 2, 2}}));

TEST_P(NcclMembersOn, ScatterWithTheBitsOfTheCpuBackend) {
  FormByNccl(GetParam());
  // Twice: the second time the counts are known.
  for (int step = 0; step < 2; ++step) {
    StageDispatch();
    MoveCounted();
    ExpectDispatched();
  }
}

TEST_P(NcclMembersOn, GatherWithTheBitsOfTheCpuBackendInOneMessagePerRankAndPeer) {
  FormByNccl(GetParam());
  for (int step = 0; step < 2; ++step) {
    for (const bool has_weights : {false, true}) {
      StageCombine(has_weights);
      MoveCounted();
      ExpectCombined(has_weights);
      EXPECT_EQ(g_sends.load(), Gathered(has_weights).first);
      EXPECT_EQ(g_bytes.load(), Gathered(has_weights).second);
    }
  }
}

}  // namespace
}  // namespace epd::cuda
