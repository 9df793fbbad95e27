#include "daemon/node/workers/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/system_call_error.h"
#include "proto/failpoint/failpoint.h"

namespace epd {
namespace {

absl::Status NotMade(const std::string& name, const char* call, size_t bytes) {
  return SystemCallError(
      absl::StrCat("cannot make the segment '", name, "' of ", bytes, " bytes: ", call), errno,
      "raise the memory or descriptor limit, or end sessions");
}

}  // namespace

absl::StatusOr<SharedSegment> SharedSegment::Create(const std::string& name, size_t bytes,
                                                    const std::vector<Part>& made) {
  SharedSegment segment;
  segment.bytes_ = bytes;
  segment.fd_ = std::make_shared<UniqueFd>(
      EPD_FAILPOINT_CALL("epd.segment.no_memory", ENOMEM,
                         memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  const int fd = segment.fd_->get();
  if (fd < 0) return NotMade(name, "memfd_create", bytes);
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) return NotMade(name, "ftruncate", bytes);
  for (const Part& part : made) {
    int failed;
    do {
      failed = EPD_FAILPOINT_CALL(
          "epd.segment.no_space", ENOSPC,
          fallocate(fd, 0, static_cast<off_t>(part.offset), static_cast<off_t>(part.bytes)));
    } while (failed != 0 && errno == EINTR);
    if (failed != 0) return NotMade(name, "fallocate", bytes);
  }
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return NotMade(name, "seal", bytes);
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return NotMade(name, "mmap", bytes);
  madvise(data, bytes, MADV_DONTFORK);
  segment.data_ = data;
  segment.guard_ = PageGuard(data, bytes);
  return segment;
}

absl::StatusOr<SharedSegment> SharedSegment::Adopt(std::shared_ptr<UniqueFd> fd, size_t bytes) {
  struct stat file = {};
  if (fd == nullptr || fstat(fd->get(), &file) != 0 || static_cast<size_t>(file.st_size) != bytes) {
    return absl::DataLossError(absl::StrCat("handover: a segment of ", file.st_size,
                                            " bytes, expected ", bytes, "; start epd anew"));
  }
  SharedSegment segment;
  segment.bytes_ = bytes;
  segment.fd_ = std::move(fd);
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, segment.fd_->get(), 0);
  if (data == MAP_FAILED) return NotMade("handover", "mmap", bytes);
  madvise(data, bytes, MADV_DONTFORK);
  segment.data_ = data;
  segment.guard_ = PageGuard(data, bytes);
  return segment;
}

SharedSegment::SharedSegment(SharedSegment&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      guard_(std::move(other.guard_)) {}

SharedSegment& SharedSegment::operator=(SharedSegment&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(guard_, other.guard_);
  return *this;
}

SharedSegment::~SharedSegment() {
  guard_ = PageGuard();
  if (data_ != nullptr) munmap(data_, bytes_);
}

size_t SharedSegment::committed_bytes() const {
  struct stat file = {};
  if (fstat(fd_->get(), &file) != 0) return bytes_;
  return static_cast<size_t>(file.st_blocks) * 512;
}

void SharedSegment::Clear(Part part) const {
  constexpr int kHole = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  if (fallocate(fd_->get(), kHole, static_cast<off_t>(part.offset),
                static_cast<off_t>(part.bytes)) == 0)
    return;
  std::memset(static_cast<std::byte*>(data_) + part.offset, 0, part.bytes);
}

absl::StatusOr<SharedSegment> CreateSlots(uint64_t session_id, uint64_t incarnation,
                                          const shm::SlotsLayout& layout) {
  absl::StatusOr<SharedSegment> segment =
      SharedSegment::Create(absl::StrCat("epd-slots-", session_id), layout.bytes(),
                            {{.offset = 0, .bytes = sizeof(shm::SlotsHeader)}});
  if (!segment.ok()) return segment;
  shm::SlotsView::Create(segment->data(), session_id, incarnation, layout);
  return segment;
}

absl::StatusOr<SharedSegment> CreateRecords(uint32_t num_slots) {
  const uint64_t bytes = shm::RecordsView::BytesFor(num_slots);
  const uint64_t shared = shm::RecordsView::OperationsOffsetFor(num_slots);
  std::vector<SharedSegment::Part> made = {{.offset = 0, .bytes = bytes}};
  if (num_slots > shm::kSlotsPerSession) {
    made = {{.offset = 0, .bytes = sizeof(shm::RecordsHeader)},
            {.offset = shared, .bytes = bytes - shared}};
  }
  absl::StatusOr<SharedSegment> segment = SharedSegment::Create("epd-records", bytes, made);
  if (segment.ok()) shm::RecordsView::Create(segment->data(), num_slots);
  return segment;
}

absl::StatusOr<SharedSegment> AdoptRecords(std::shared_ptr<UniqueFd> fd, uint32_t num_slots) {
  absl::StatusOr<SharedSegment> segment =
      SharedSegment::Adopt(std::move(fd), shm::RecordsView::BytesFor(num_slots));
  if (!segment.ok()) return segment;
  shm::RecordsView view;
  if (shm::RecordsView::Open(segment->data(), segment->bytes(), &view)) return segment;
  return absl::DataLossError(absl::StrCat("handover: the outcome records are not of ", num_slots,
                                          " slots a session; start epd anew"));
}

void ClearRecordsOf(const SharedSegment& records, uint32_t record_index) {
  const std::span<shm::SlotRecord> block = Records(records).block(record_index);
  // A single page has been there from the start, and is to stay.
  if (block.size_bytes() <= shm::kSlotsPerSession * sizeof(shm::SlotRecord)) {
    for (shm::SlotRecord& record : block) {
      record.claim.store(0, std::memory_order_relaxed);
      record.op_id.store(0, std::memory_order_relaxed);
    }
    return;
  }
  const auto offset = static_cast<size_t>(reinterpret_cast<std::byte*>(block.data()) -
                                          static_cast<std::byte*>(records.data()));
  records.Clear({.offset = offset, .bytes = block.size_bytes()});
}

}  // namespace epd
