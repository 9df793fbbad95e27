#include "daemon/backend/cuda/members/region_board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace epd::cuda {
namespace {

// Words of a cache line; `taken` has one of its own.
constexpr size_t kLine = 8;
constexpr size_t kWordsOfRank = 3;

std::atomic_ref<uint64_t> Shared(uint64_t* word) { return std::atomic_ref<uint64_t>(*word); }

absl::Status Exhausted(const char* call) {
  return absl::ResourceExhaustedError(
      absl::StrCat("memory that workers of a node share: ", call, ": ", std::strerror(errno),
                   "; raise the memory or descriptor limit of epd"));
}

}  // namespace

size_t RegionBoard::Words(size_t max_ranks) {
  return kLine + kPlaces * (1 + kWordsOfRank * max_ranks);
}

uint64_t* RegionBoard::Entry(uint64_t place) const {
  return words_ + kLine + (place % kPlaces) * (1 + kWordsOfRank * max_ranks_);
}

absl::StatusOr<RegionBoard> RegionBoard::Create(size_t max_ranks) {
  const size_t bytes = Words(max_ranks) * sizeof(uint64_t);
  UniqueFd fd(memfd_create("epd-regions", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return Exhausted("memfd_create");
  if (fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) != 0) return Exhausted("fallocate");
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return Exhausted("a seal");
  }
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return Exhausted("mmap");
  madvise(data, bytes, MADV_DONTFORK);
  return RegionBoard(std::move(fd), data, max_ranks);
}

absl::StatusOr<RegionBoard> RegionBoard::Open(int fd, size_t max_ranks) {
  const size_t bytes = Words(max_ranks) * sizeof(uint64_t);
  struct stat file = {};
  if (fstat(fd, &file) != 0 || static_cast<size_t>(file.st_size) != bytes) {
    return absl::DataLossError(absl::StrCat("memory that workers of a node share has ",
                                            file.st_size, " bytes, expected ", bytes));
  }
  void* data = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return Exhausted("mmap");
  madvise(data, bytes, MADV_DONTFORK);
  return RegionBoard(UniqueFd(), data, max_ranks);
}

RegionBoard::RegionBoard(RegionBoard&& other) noexcept
    : fd_(std::move(other.fd_)),
      words_(std::exchange(other.words_, nullptr)),
      max_ranks_(other.max_ranks_) {}

RegionBoard::~RegionBoard() {
  if (words_ != nullptr) munmap(words_, Words(max_ranks_) * sizeof(uint64_t));
}

void RegionBoard::Write(uint64_t place, absl::Span<const RankRegion> ranks) {
  uint64_t* const entry = Entry(place);
  uint64_t* word = entry + 1;
  for (const RankRegion& rank : ranks) {
    *word++ = rank.offset;
    *word++ = rank.num_tokens;
    *word++ = rank.recv_capacity;
  }
  Shared(entry).store(place + 1, std::memory_order_release);
}

bool RegionBoard::Read(uint64_t place, absl::Span<RankRegion> ranks) const {
  uint64_t* const entry = Entry(place);
  if (Shared(entry).load(std::memory_order_acquire) != place + 1) return false;
  const uint64_t* word = entry + 1;
  for (RankRegion& rank : ranks) {
    rank.offset = *word++;
    rank.num_tokens = *word++;
    rank.recv_capacity = *word++;
  }
  return true;
}

void RegionBoard::SetTaken(uint64_t num_places) {
  Shared(words_).store(num_places, std::memory_order_release);
}

uint64_t RegionBoard::taken() const { return Shared(words_).load(std::memory_order_acquire); }

}  // namespace epd::cuda
