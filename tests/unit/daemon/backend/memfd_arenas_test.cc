// Goal: arenas cost memory only where it was committed, cannot be shrunk, and are read-only for
// whoever gets the read-only descriptor.
#include "daemon/backend/cpu/memfd_arenas.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "daemon/core/unique_fd.h"
#include "proto/epd/v1/direct_area.h"

namespace epd {
namespace {

constexpr uint64_t kBytes = uint64_t{1} << 40;

uint64_t BytesWithDirectArea(int fd) {
  struct stat facts = {};
  fstat(fd, &facts);
  return static_cast<uint64_t>(facts.st_blocks) * 512;
}

// Of its staging: the direct area behind that is there from the beginning.
uint64_t AllocatedBytes(int fd) { return BytesWithDirectArea(fd) - sizeof(shm::DirectTail); }

int DoAll(PageAction action, const std::vector<FilePages>& pages) {
  int error = 0;
  for (const FilePages& one : pages) error = error != 0 ? error : DoPageAction(action, one);
  return error;
}

bool Make(const MemfdArenas& arenas, uint64_t offset, uint64_t bytes) {
  return DoAll(PageAction::kMake, arenas.PagesOf(offset, bytes)) == 0;
}

void GiveBack(const MemfdArenas& arenas, uint64_t offset, uint64_t bytes) {
  EXPECT_EQ(DoAll(PageAction::kGiveBack, arenas.PagesOf(offset, bytes)), 0);
}

TEST(MemfdArenas, AddressSpaceIsFreeAndMemoryComesAsItIsMade) {
  const auto arenas = MemfdArenas::Create(2, kBytes).value();
  EXPECT_EQ(arenas->num_arenas(), 2);
  EXPECT_EQ(AllocatedBytes(arenas->Share(0)->read_write_fd), 0u);
  ASSERT_TRUE(Make(*arenas, 4096, 8192));
  for (int i = 0; i < 2; ++i) EXPECT_GE(AllocatedBytes(arenas->Share(i)->read_write_fd), 8192u);
  GiveBack(*arenas, 4096, 8192);
  EXPECT_EQ(AllocatedBytes(arenas->Share(1)->read_write_fd), 0u);
}

TEST(MemfdArenas, OfAnySizeHaveADirectAreaThatBeginsWithAPage) {
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{4096}, uint64_t{1'000'000'001}}) {
    const auto arenas = MemfdArenas::Create(1, bytes);
    ASSERT_TRUE(arenas.ok()) << bytes << ": " << arenas.status();
    EXPECT_GE((*arenas)->arena_bytes(), bytes);
    EXPECT_LT((*arenas)->arena_bytes(), bytes + 4096);
    EXPECT_EQ((*arenas)->Share(0)->bytes, (*arenas)->arena_bytes() + sizeof(shm::DirectTail));
    (*arenas)->Direct(0)->area.records[0].word.store(1);
  }
}

TEST(MemfdArenas, ReadReturnsWhatAClientWroteAndZerosInHoles) {
  const auto arenas = MemfdArenas::Create(1, 1 << 20).value();
  char* mapped = arenas->Map(0).value();
  ASSERT_TRUE(Make(*arenas, 0, 4096));
  std::memcpy(mapped + 10, "hello", 5);
  char text[5];
  ASSERT_TRUE(arenas->Read(0, 10, absl::MakeSpan(text)).ok());
  EXPECT_EQ(std::string(text, 5), "hello");
  ASSERT_TRUE(arenas->Read(0, 8192, absl::MakeSpan(text)).ok());
  EXPECT_EQ(std::string(text, 5), std::string(5, '\0'));
  EXPECT_EQ(arenas->Read(0, (1 << 20) - 2, absl::MakeSpan(text)).code(),
            absl::StatusCode::kDataLoss);
}

// The worker's process may end: what ranks still read stays theirs until they let go of it.
TEST(MemfdArenas, PagesThatAreNotGivenBackStayWithWhoReadsThem) {
  auto arenas = MemfdArenas::Create(1, 1 << 20).value();
  ASSERT_TRUE(Make(*arenas, 0, 4096));
  const int read_only = arenas->Share(0)->read_only_fd;
  const auto* const reads =
      static_cast<const char*>(mmap(nullptr, 4096, PROT_READ, MAP_SHARED, read_only, 0));
  ASSERT_NE(reads, MAP_FAILED);
  std::memcpy(arenas->Map(0).value(), "rows", 4);
  arenas.reset();
  EXPECT_EQ(std::string(reads, 4), "rows");
  munmap(const_cast<char*>(reads), 4096);
}

TEST(MemfdArenas, ClientsCanNeitherShrinkNorGrowOneAndPeersCannotWrite) {
  const auto arenas = MemfdArenas::Create(1, 1 << 20).value();
  EXPECT_NE(ftruncate(arenas->Share(0)->read_write_fd, 0), 0);
  EXPECT_NE(ftruncate(arenas->Share(0)->read_write_fd, 2 << 20), 0);
  const int read_only = arenas->Share(0)->read_only_fd;
  EXPECT_EQ(mmap(nullptr, 4096, PROT_WRITE, MAP_SHARED, read_only, 0), MAP_FAILED);
  EXPECT_LT(write(read_only, "x", 1), 0);
  EXPECT_EQ(fcntl(read_only, F_GETFL) & O_ACCMODE, O_RDONLY);
  struct stat facts = {};
  fstat(read_only, &facts);
  EXPECT_EQ(facts.st_mode & 0777, 0u) << "it can be opened again for writing";
}

// F_SEAL_FUTURE_WRITE by a client would stop the worker from giving pages back.
TEST(MemfdArenas, ClientsCanAddNoSeal) {
  const auto arenas = MemfdArenas::Create(1, 1 << 20).value();
  const int fd = arenas->Share(0)->read_write_fd;
  EXPECT_NE(fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
  ASSERT_TRUE(Make(*arenas, 0, 8192));
  GiveBack(*arenas, 0, 8192);
  EXPECT_EQ(AllocatedBytes(fd), 0u);
}

TEST(MemfdArenas, AllPagesAreGivenBackAlthoughAClientHoldsThem) {
  auto arenas = MemfdArenas::Create(1, 1 << 20).value();
  ASSERT_TRUE(Make(*arenas, 0, 8192));
  const int held = fcntl(arenas->Share(0)->read_write_fd, F_DUPFD_CLOEXEC, 0);
  void* mapped = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, held, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  std::memset(mapped, 1, 8192);
  EXPECT_EQ(DoAll(PageAction::kGiveBack, arenas->MeetingPages()), 0);
  GiveBack(*arenas, 0, 8192);
  EXPECT_EQ(BytesWithDirectArea(held), 0u);
  munmap(mapped, 8192);
  close(held);
}

// Arenas 1, 3 and 4 are of ranks of one other worker, 2 of a second one's.
TEST(MemfdArenas, ALandingArenaHoldsEqualPartsAndOnlyTheWorkerWritesThem) {
  constexpr uint64_t kPart = 1 << 20;
  auto arenas = MemfdArenas::Create(5, kPart, {-1, 0, 1, 0, 0}).value();
  const ArenaShare own = arenas->Share(0).value();
  EXPECT_EQ(own.landing, -1);
  EXPECT_EQ(own.bytes, kPart) << "nobody meets here without the worker";
  EXPECT_EQ(arenas->Direct(0), nullptr);
  const ArenaShare landing = arenas->Share(1).value();
  for (const int arena : {1, 3, 4}) {
    const ArenaShare share = arenas->Share(arena).value();
    EXPECT_EQ(share.landing, 0);
    EXPECT_EQ(share.bytes, 3 * kPart);
    EXPECT_EQ(share.read_only_fd, landing.read_only_fd);
    EXPECT_EQ(share.read_write_fd, -1) << "it leaves the worker to be read alone";
  }
  EXPECT_EQ(arenas->Share(2)->bytes, kPart);
  EXPECT_EQ(arenas->Share(2)->landing, 1);
  EXPECT_NE(arenas->Share(2)->read_only_fd, landing.read_only_fd);

  ASSERT_TRUE(Make(*arenas, 8192, 4096));
  EXPECT_EQ(BytesWithDirectArea(landing.read_only_fd), 3 * 4096u);
  const char letters[] = "abcde";
  for (int arena = 0; arena < 5; ++arena) arenas->Map(arena).value()[8192] = letters[arena];
  const auto* const reads = static_cast<const char*>(
      mmap(nullptr, 3 * kPart, PROT_READ, MAP_SHARED, landing.read_only_fd, 0));
  ASSERT_NE(reads, MAP_FAILED);
  EXPECT_EQ(reads[8192], 'b');
  EXPECT_EQ(reads[kPart + 8192], 'd');
  EXPECT_EQ(reads[2 * kPart + 8192], 'e');
  for (int arena = 0; arena < 5; ++arena) {
    char letter = 0;
    ASSERT_TRUE(arenas->Read(arena, 8192, absl::MakeSpan(&letter, 1)).ok());
    EXPECT_EQ(letter, letters[arena]);
    EXPECT_FALSE(arenas->Read(arena, kPart, absl::MakeSpan(&letter, 1)).ok()) << "the next arena's";
  }
  EXPECT_EQ(mmap(nullptr, 4096, PROT_WRITE, MAP_SHARED, landing.read_only_fd, 0), MAP_FAILED);
  EXPECT_NE(ftruncate(landing.read_only_fd, 0), 0);
  const int held = fcntl(landing.read_only_fd, F_DUPFD_CLOEXEC, 0);
  GiveBack(*arenas, 8192, 4096);
  EXPECT_EQ(BytesWithDirectArea(held), 0u);
  munmap(const_cast<char*>(reads), 3 * kPart);
  close(held);
}

TEST(MemfdArenas, DescriptorsAreCloseOnExec) {
  const auto arenas = MemfdArenas::Create(1, 4096).value();
  EXPECT_TRUE(fcntl(arenas->Share(0)->read_write_fd, F_GETFD) & FD_CLOEXEC);
  EXPECT_TRUE(fcntl(arenas->Share(0)->read_only_fd, F_GETFD) & FD_CLOEXEC);
}

int NumDescriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& one : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

TEST(MemfdArenas, ManyAreMadeAndDroppedAFewAtATime) {
  constexpr int kMost = 16;  // What is made and dropped at once.
  const int before = NumDescriptors();
  auto arenas = MemfdArenas::Plan(40, 1 << 20, {});
  EXPECT_EQ(NumDescriptors(), before) << "nothing is there yet";
  int num_turns = 0;
  for (bool more = true; more; ++num_turns) {
    EXPECT_TRUE(absl::IsUnavailable(arenas->Ready())) << num_turns;
    const int had = NumDescriptors();
    more = arenas->MakeSome();
    EXPECT_LE(NumDescriptors() - had, 2 * kMost);
  }
  EXPECT_EQ(num_turns, 2 * 40 / kMost) << "memfds, then direct areas";
  ASSERT_TRUE(arenas->Ready().ok());
  for (int i = 0; i < 40; ++i) arenas->Direct(i)->area.records[0].word.store(1);
  ASSERT_TRUE(Make(*arenas, 0, 4096));
  EXPECT_EQ(DoAll(PageAction::kGiveBack, arenas->MeetingPages()), 0);
  EXPECT_EQ(arenas->Direct(39)->area.records[0].word.load(), 0u);
  num_turns = 0;
  while (arenas->DropSome()) ++num_turns;
  EXPECT_EQ(num_turns, 2 * 40 / kMost - 1) << "arenas, then memfds";
  EXPECT_EQ(NumDescriptors(), before);
}

TEST(MemfdArenas, WhatIsDroppedHalfMadeLeavesNothing) {
  const int before = NumDescriptors();
  auto arenas = MemfdArenas::Plan(40, 1 << 20, {});
  ASSERT_TRUE(arenas->MakeSome());
  arenas.reset();
  EXPECT_EQ(NumDescriptors(), before);
}

}  // namespace
}  // namespace epd
