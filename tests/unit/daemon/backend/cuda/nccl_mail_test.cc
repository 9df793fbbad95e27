// Goal: the fake NCCL that carries bytes between processes carries them, and finds every broken rule that
// the tests over it rely on.
#include "tests/fakes/cuda/nccl_mail.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <filesystem>
#include <string>
#include <vector>

namespace epd::cuda {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class NcclMailTest : public ::testing::Test {
 protected:
  NcclMailTest() : table_(NcclMailTable()) {
    char name[] = "/tmp/nccl-mail-XXXXXX";
    folder_ = mkdtemp(name);
    UseNcclMail({.folder = folder_,
                 .put = [this](Stream, std::function<bool()> run) { stream_.push_back(run); },
                 .violation = [this](const std::string& what) { violations_.push_back(what); }});
    EXPECT_EQ(MakeNcclMailId(&id_), kNcclSuccess);
  }
  ~NcclMailTest() override { std::filesystem::remove_all(folder_); }

  NcclComm Enter(int rank, int num_ranks = 2) {
    NcclComm comm = nullptr;
    NcclConfig config;
    EXPECT_EQ(table_.init_rank(&comm, num_ranks, id_, rank, &config), kNcclInProgress);
    return comm;
  }
  NcclResult State(NcclComm comm) {
    NcclResult state = kNcclSuccess;
    table_.get_async_error(comm, &state);
    return state;
  }
  // Puts what was issued into the streams, and runs them until nothing moves.
  void Run(const std::vector<NcclComm>& comms) {
    for (const NcclComm comm : comms) State(comm);
    for (int i = 0; i < 3; ++i) std::erase_if(stream_, [](const auto& run) { return run(); });
  }
  void Exchange(NcclComm comm, int peer, const std::string& send, std::string& receive) {
    EXPECT_EQ(table_.group_start(), kNcclSuccess);
    const std::string& kept = sent_.emplace_back(send);  // Until the stream has run.
    EXPECT_EQ(table_.send(kept.data(), kept.size(), kNcclInt8, peer, comm, nullptr), kNcclSuccess);
    EXPECT_EQ(table_.receive(receive.data(), receive.size(), kNcclInt8, peer, comm, nullptr),
              kNcclSuccess);
    EXPECT_EQ(table_.group_end(), kNcclInProgress);
  }

  const NcclTable table_;
  std::string folder_;
  NcclUniqueId id_ = {};
  std::deque<std::string> sent_;
  std::vector<std::function<bool()>> stream_;
  std::vector<std::string> violations_;
};

TEST_F(NcclMailTest, BytesArriveOnceBothSidesAreThere) {
  const NcclComm a = Enter(0);
  EXPECT_EQ(State(a), kNcclInProgress);
  const NcclComm b = Enter(1);
  EXPECT_EQ(State(a), kNcclSuccess);
  std::string at_a(3, '-');
  std::string at_b(2, '-');
  Exchange(a, 1, "ab", at_a);
  Run({a});
  EXPECT_EQ(stream_.size(), 1u) << "it must wait for the other side";
  Exchange(b, 0, "xyz", at_b);
  Run({b});
  EXPECT_EQ(at_a, "xyz");
  EXPECT_EQ(at_b, "ab");
  EXPECT_THAT(stream_, IsEmpty());
  EXPECT_THAT(violations_, IsEmpty());
}

TEST_F(NcclMailTest, SizesThatDifferAreFound) {
  const NcclComm a = Enter(0);
  const NcclComm b = Enter(1);
  std::string three(3, '-');
  std::string two(2, '-');
  Exchange(a, 1, "abc", three);
  Exchange(b, 0, "xyz", two);
  Run({a, b});
  EXPECT_THAT(violations_, Contains(HasSubstr("receives 2 and is sent 3")));
}

TEST_F(NcclMailTest, OperationsInAnotherOrderAreFound) {
  const NcclComm a = Enter(0);
  const NcclComm b = Enter(1);
  std::string into(4, '-');
  std::string small(1, '-');
  Exchange(a, 1, "a", small);
  Exchange(a, 1, "abcd", into);
  Exchange(b, 0, "wxyz", into);
  Exchange(b, 0, "w", small);
  Run({a, b});
  EXPECT_THAT(violations_, Contains(HasSubstr("group 0 with rank 1: receives 1 and is sent 4")));
}

TEST_F(NcclMailTest, AnAbortEndsWhatWaitsAndNothingMayBeCalledAfterIt) {
  const NcclComm a = Enter(0);
  const NcclComm b = Enter(1);
  std::string into(1, '-');
  Exchange(a, 1, "a", into);
  Run({a});
  EXPECT_EQ(stream_.size(), 1u);
  EXPECT_EQ(table_.abort(a), kNcclSuccess);
  Run({});
  EXPECT_THAT(stream_, IsEmpty());
  EXPECT_EQ(State(b), kNcclRemoteError);
  EXPECT_THAT(violations_, IsEmpty());
  table_.finalize(a);
  EXPECT_THAT(violations_, Contains(HasSubstr("ncclCommFinalize of nccl-")));
  violations_.clear();
  table_.finalize(b);
  EXPECT_THAT(violations_, Contains(HasSubstr("rank 0 has aborted")));
}

// What `rank` does in a process that is gone afterwards.
void InChild(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(0);
  }
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
}

TEST_F(NcclMailTest, AnEndInOrderWithADeadMemberIsFound) {
  const NcclComm a = Enter(0);
  InChild([this] { Enter(1); });
  EXPECT_EQ(State(a), kNcclRemoteError);
  table_.finalize(a);
  EXPECT_THAT(violations_, Contains(HasSubstr("rank 1 is dead")));
  violations_.clear();
  table_.destroy(a);
  EXPECT_THAT(violations_, Contains(HasSubstr("ncclCommDestroy")));
}

TEST_F(NcclMailTest, AnIdWhoseMakerIsGoneAndOneThatHasServedAreFound) {
  Enter(0);
  Enter(0);
  EXPECT_THAT(violations_, Contains(HasSubstr("rank 0 has entered before")));
  violations_.clear();
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  InChild([&] {
    NcclUniqueId id = {};
    MakeNcclMailId(&id);
    [[maybe_unused]] const ssize_t ignored = write(ends[1], id.bytes, sizeof id.bytes);
  });
  ASSERT_EQ(read(ends[0], id_.bytes, sizeof id_.bytes), static_cast<ssize_t>(sizeof id_.bytes));
  close(ends[0]);
  close(ends[1]);
  Enter(0);
  EXPECT_THAT(violations_, Contains(HasSubstr("who made the id is gone")));
}

TEST_F(NcclMailTest, ASendOutsideOfAGroupIsFound) {
  const NcclComm a = Enter(0);
  Enter(1);
  EXPECT_NE(table_.send("a", 1, kNcclInt8, 1, a, nullptr), kNcclSuccess);
  EXPECT_THAT(violations_, Contains(HasSubstr("ncclSend: outside of a group")));
}

}  // namespace
}  // namespace epd::cuda
