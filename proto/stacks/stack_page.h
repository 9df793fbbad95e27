// Where a process writes the stacks of its threads, for somebody who reads them without its help: a file in memory, of a fixed
// layout, that is there before anything hangs.
//
// A page has a table of the modules (programs and libraries) that its frames lie in, with their build ids: who reads it resolves the
// addresses later, on this machine or elsewhere. Each request is a round. A thread's stack is whole once `written` is the
// page's round. Written by its process alone; a reader copies it first and trusts nothing in it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace epd::stacks {

inline constexpr uint64_t kMagic = 0x314b434154535045;  // "EPSTACK1", little endian.
inline constexpr uint32_t kVersion = 1;
inline constexpr uint32_t kMaxThreads = 256;
inline constexpr uint32_t kMaxFrames = 64;  // The innermost ones.
inline constexpr uint32_t kMaxModules = 128;
inline constexpr uint32_t kMaxBuildIdBytes = 32;
inline constexpr uint32_t kPathBytes = 256;  // With its terminating zero.
inline constexpr uint32_t kThreadNameBytes = 16;

struct Module {
  std::atomic<uint32_t> written;  // 1: the other fields are there.
  uint32_t build_id_bytes;        // 0: it has none.
  uint64_t begin;                 // Its addresses.
  uint64_t end;
  uint64_t bias;  // An address less this is one of the file's symbol table.
  uint8_t build_id[kMaxBuildIdBytes];
  char path[kPathBytes];  // "": the program itself.
};

// Of a ThreadStack.
inline constexpr uint32_t kIsCut = 1;  // There are more frames, further out.
inline constexpr uint32_t kIsScanned =
    2;  // Some frames may be of calls that have ended (stack_scan.h).

struct ThreadStack {
  std::atomic<int32_t> tid;
  std::atomic<uint32_t> written;  // The round of which the other fields are.
  uint32_t num_frames;
  uint32_t flags;
  char name[kThreadNameBytes];
  // The first is where the thread is, the others where calls return to.
  uint64_t frames[kMaxFrames];
};

struct StackPage {
  uint64_t magic;
  uint32_t version;
  uint32_t page_bytes;
  int32_t pid;
  uint32_t uid;
  uint64_t start_ticks;  // Of /proc/PID/stat: a pid may be another process's later.
  char program[kPathBytes];
  std::atomic<int64_t> asked_unix_ns;  // When the round began; 0: nobody has asked.
  std::atomic<uint32_t> round;
  std::atomic<uint32_t> num_threads;   // Of this round.
  std::atomic<uint32_t> num_left_out;  // Threads beyond kMaxThreads.
  std::atomic<uint32_t> num_modules;   // Only grows; may be above kMaxModules.
  Module modules[kMaxModules];
  ThreadStack threads[kMaxThreads];
};

static_assert(std::atomic<int64_t>::is_always_lock_free);
static_assert(std::atomic<uint32_t>::is_always_lock_free);
static_assert(sizeof(Module) == 320 && offsetof(Module, path) == 64);
static_assert(sizeof(ThreadStack) == 544 && offsetof(ThreadStack, frames) == 32);
static_assert(offsetof(StackPage, modules) == 312 && offsetof(StackPage, threads) == 41272);

// The folder of a user's pages is this and the number of the user; a page is "<pid>.<start_ticks>". In memory, so that
// no thread waits for a disk while it writes.
inline constexpr char kFolderPrefix[] = "/dev/shm/epd-stacks-";

// Whether all threads of the page's round have written.
inline bool IsWhole(const StackPage& page) {
  const uint32_t round = page.round.load(std::memory_order_acquire);
  const uint32_t said = page.num_threads.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < (said < kMaxThreads ? said : kMaxThreads); ++i) {
    if (page.threads[i].written.load(std::memory_order_acquire) != round) return false;
  }
  return true;
}

}  // namespace epd::stacks
