#include "proto/stacks/stack_scan.h"

#include <elf.h>
#include <link.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstring>

namespace epd::stacks {
namespace {

constexpr uint64_t kFirstAddress = 4096;    // Below are numbers.
constexpr uint64_t kMostBytes = 128 << 10;  // Of a stack.
constexpr uint64_t kChunkBytes =
    1024;  // A whole part of a page; a signal may have a small stack of its own.

// Whether [begin, end) is code of the module: memory that may be read and run.
bool IsCode(uint64_t begin, uint64_t end, const dl_find_object& module) {
  const auto map = reinterpret_cast<uint64_t>(module.dlfo_map_start);
  const auto map_end = reinterpret_cast<uint64_t>(module.dlfo_map_end);
  const auto* header = reinterpret_cast<const ElfW(Ehdr)*>(map);
  if (map_end - map < sizeof *header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0)
    return false;
  const uint64_t table = map + header->e_phoff;
  if (table + uint64_t{header->e_phnum} * sizeof(ElfW(Phdr)) > map_end) return false;
  const auto* segments = reinterpret_cast<const ElfW(Phdr)*>(table);
  for (int i = 0; i < header->e_phnum; ++i) {
    const ElfW(Phdr)& one = segments[i];
    constexpr unsigned kCode = PF_R | PF_X;
    const uint64_t at = module.dlfo_link_map->l_addr + one.p_vaddr;
    if (one.p_type == PT_LOAD && (one.p_flags & kCode) == kCode && begin >= at &&
        end <= at + one.p_filesz)
      return true;
  }
  return false;
}

}  // namespace

bool FollowsCall(uint64_t address, const dl_find_object& module) {
#if defined(__x86_64__)
  constexpr uint64_t kLongest = 7;
  if (!IsCode(address - kLongest, address, module)) return false;
  const auto* end = reinterpret_cast<const uint8_t*>(address);
  if (end[-5] == 0xe8) return true;  // call rel32
  // call r/m64: FF /2, with a SIB byte and a displacement or without.
  constexpr int kLengths[] = {2, 3, 4, 6, 7};
  for (const int length : kLengths) {
    if (end[-length] == 0xff && (end[-length + 1] & 0x38) == 0x10) return true;
  }
  return false;
#elif defined(__aarch64__)
  constexpr uint64_t kInstruction = 4;
  if (address % kInstruction != 0 || !IsCode(address - kInstruction, address, module)) return false;
  uint32_t before;
  std::memcpy(&before, reinterpret_cast<const void*>(address - kInstruction), sizeof before);
  return (before & 0xfc000000u) == 0x94000000u ||  // bl
         (before & 0xfffffc1fu) == 0xd63f0000u;    // blr
#else
  (void)address;
  (void)module;
  return false;
#endif
}

size_t ScanStack(uint64_t stack, FindObject find, uint64_t* frames, size_t max) {
  if (find == nullptr) return 0;
  uint64_t words[kChunkBytes / sizeof(uint64_t)];
  size_t count = 0;
  uint64_t at = stack & ~uint64_t{7};
  const uint64_t last = at + kMostBytes;
  while (at < last && count < max) {
    // Up to the end of a page, so that no chunk has an end that is not there.
    const uint64_t bytes = kChunkBytes - at % kChunkBytes;
    const iovec to = {.iov_base = words, .iov_len = bytes};
    const iovec from = {.iov_base = reinterpret_cast<void*>(at), .iov_len = bytes};
    const long got = syscall(SYS_process_vm_readv, getpid(), &to, 1, &from, 1, 0);
    if (got != static_cast<long>(bytes)) break;
    for (uint64_t i = 0; i < bytes / sizeof(uint64_t) && count < max; ++i) {
      dl_find_object module = {};
      if (words[i] < kFirstAddress || find(reinterpret_cast<void*>(words[i]), &module) != 0)
        continue;
      if (FollowsCall(words[i], module)) frames[count++] = words[i];
    }
    at += bytes;
  }
  return count;
}

}  // namespace epd::stacks
