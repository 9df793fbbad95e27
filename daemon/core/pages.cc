#include "daemon/core/pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace epd {

absl::Status MakePages(void* first, size_t bytes) {
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(first) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(first) + bytes;
  if (madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_WRITE) == 0 ||
      errno == EINVAL) {
    return absl::OkStatus();
  }
  // EFAULT is what would have been a SIGBUS.
  const char* why = errno == EFAULT ? "the kernel gives none" : std::strerror(errno);
  return absl::ResourceExhaustedError(
      absl::StrCat("no memory for ", bytes, " bytes of a shared segment: ", why));
}

absl::Status MakePagesOfWords(const shm::SlotsView& slots, uint32_t group) {
  const uint32_t first = group * shm::kSlotsOfGroup;
  const uint32_t last = std::min(first + shm::kSlotsOfGroup, slots.num_slots()) - 1;
  return MakePages(&slots.word(first),
                   slots.OffsetOfWord(last) - slots.OffsetOfWord(first) + sizeof(uint64_t));
}

absl::Status MakePageOfSlot(const shm::SlotsView& slots, uint32_t slot) {
  return MakePages(&slots.slot(slot), sizeof(shm::Slot));
}

}  // namespace epd
