// Workers whose rows go by NCCL, to all others or to some, over a fake NCCL that carries the bytes and counts them.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cuda/landing.h"
#include "tests/fakes/cuda/nccl_mail.h"
#include "tests/unit/daemon/backend/cuda/direct_members_harness.h"

namespace epd::cuda {

// What all members have sent.
inline std::atomic<int> g_sends;
inline std::atomic<uint64_t> g_bytes;

class SendingMembers : public DirectMembers {
 protected:
  SendingMembers() {
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
  void FormByNccl(const Node& node, const FakeMachine& machine = {}) {
    Form(node, machine);
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while (!::testing::Matches(::testing::Each(absl::OkStatus()))(Formed()) &&
           absl::Now() < deadline) {
      std::this_thread::yield();
    }
    ASSERT_THAT(Formed(), ::testing::Each(absl::OkStatus()));
  }
  void MoveCounted() {
    g_sends = 0;
    g_bytes = 0;
    ASSERT_THAT(Move(), ::testing::Each(absl::OkStatus()));
  }

  // Whether rows of a worker go to another one by NCCL.
  virtual bool Sends(int from, int to) const { return from != to; }
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
  // Tokens of a rank that have routes to another one.
  int64_t TokensFor(size_t source, size_t destination) const {
    const std::vector<int64_t>& topk = problem_.topk[source];
    const auto top_k = static_cast<size_t>(problem_.top_k);
    int64_t tokens = 0;
    for (size_t first = 0; first < topk.size(); first += top_k) {
      tokens += std::any_of(&topk[first], &topk[first] + top_k, [&](int64_t expert) {
        return expert >= 0 &&
               problem_.owner[static_cast<size_t>(expert)] == static_cast<int32_t>(destination);
      });
    }
    return tokens;
  }
  // Messages of a scatter, and their bytes.
  std::pair<int, uint64_t> Scattered() const {
    std::pair<int, uint64_t> all = {0, 0};
    for (size_t source = 0; source < num_ranks(); ++source) {
      for (size_t destination = 0; destination < num_ranks(); ++destination) {
        const int64_t tokens = TokensFor(source, destination);
        if (!Sends(MemberOf(source), MemberOf(destination)) || tokens == 0) continue;
        ++all.first;
        all.second += LandingBytes(tokens, problem_.top_k, kRowBytes);
      }
    }
    return all;
  }
  // Messages of a gather, and their bytes.
  std::pair<int, uint64_t> Gathered(bool has_weights) const {
    std::pair<int, uint64_t> all = {0, 0};
    for (size_t owner = 0; owner < num_ranks(); ++owner) {
      for (int member = 0; member < static_cast<int>(workers_.size()); ++member) {
        const uint64_t rows = RowsFor(owner, member);
        if (!Sends(MemberOf(owner), member) || rows == 0) continue;
        ++all.first;
        all.second += shm::OutBytes(rows * kRowBytes, has_weights ? rows : 0);
      }
    }
    return all;
  }

  std::shared_ptr<std::string> folder_;
};

}  // namespace epd::cuda
