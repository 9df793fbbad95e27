#include "daemon/node/workers/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/failpoint/failpoint.h"

namespace epd {
namespace {

absl::Status Exhausted(const std::string& name, const char* call, size_t bytes) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "cannot make the segment '", name, "' of ", bytes, " bytes: ", call, ": ",
      std::strerror(errno), "; raise the memory or descriptor limit, or end sessions"));
}

}  // namespace

absl::StatusOr<SharedSegment> SharedSegment::Create(const std::string& name, size_t bytes) {
  SharedSegment segment;
  segment.bytes_ = bytes;
  segment.fd_ = std::make_shared<UniqueFd>(
      EPD_FAILPOINT_CALL("epd.segment.no_memory", ENOMEM,
                         memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  const int fd = segment.fd_->get();
  if (fd < 0) return Exhausted(name, "memfd_create", bytes);
  int failed;
  do {
    failed = EPD_FAILPOINT_CALL("epd.segment.no_space", ENOSPC,
                                fallocate(fd, 0, 0, static_cast<off_t>(bytes)));
  } while (failed != 0 && errno == EINTR);
  if (failed != 0) return Exhausted(name, "fallocate", bytes);
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return Exhausted(name, "seal", bytes);
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return Exhausted(name, "mmap", bytes);
  madvise(data, bytes, MADV_DONTFORK);
  segment.data_ = data;
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
  if (data == MAP_FAILED) return Exhausted("handover", "mmap", bytes);
  madvise(data, bytes, MADV_DONTFORK);
  segment.data_ = data;
  return segment;
}

SharedSegment::SharedSegment(SharedSegment&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

SharedSegment& SharedSegment::operator=(SharedSegment&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

SharedSegment::~SharedSegment() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

absl::StatusOr<SharedSegment> CreateSlots(uint64_t session_id, uint64_t incarnation) {
  absl::StatusOr<SharedSegment> segment =
      SharedSegment::Create(absl::StrCat("epd-slots-", session_id), sizeof(shm::SlotsSegment));
  if (!segment.ok()) return segment;
  shm::SlotsView::Create(segment->data(), session_id, incarnation);
  return segment;
}

absl::StatusOr<SharedSegment> CreateRecords() {
  absl::StatusOr<SharedSegment> segment =
      SharedSegment::Create("epd-records", sizeof(shm::RecordsSegment));
  if (!segment.ok()) return segment;
  shm::RecordsHeader& header = Records(*segment).header;
  header.magic = shm::kRecordsMagic;
  header.version = shm::kSegmentVersion;
  header.header_bytes = sizeof(shm::RecordsHeader);
  header.segment_bytes = sizeof(shm::RecordsSegment);
  header.max_sessions = shm::kMaxSessions;
  header.slots_per_session = shm::kSlotsPerSession;
  header.max_operations = shm::kMaxOperations;
  return segment;
}

}  // namespace epd
