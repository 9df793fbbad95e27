#include "daemon/shared_memory/page_guard.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace epd {

// Read by the signal handler, so without locks: `end` is 0 while `begin` changes.
struct PageGuard::Entry {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};
  std::atomic<bool> lost{false};
};

// Stays for ever: a handler may read it.
struct PageGuard::Chunk {
  static constexpr size_t kEntries = 1024;
  std::array<Entry, kEntries> entries;
  Chunk* next = nullptr;
};

struct PageGuardTable {
  using Entry = PageGuard::Entry;
  using Chunk = PageGuard::Chunk;

  static constexpr size_t kFillerBytes = size_t{256} << 10;

  absl::Mutex mutex;
  std::vector<Entry*> free ABSL_GUARDED_BY(mutex);
  std::atomic<Chunk*> first{nullptr};
  std::atomic<uint64_t> num_lost{0};
  struct sigaction before = {};
  // What takes a lost page's place: there from the start, since there is no memory when it is needed.
  int filler = -1;
  uintptr_t page = 0;

  static PageGuardTable& Get() {
    static PageGuardTable* const table = new PageGuardTable;
    return *table;
  }

  PageGuardTable() : page(static_cast<uintptr_t>(sysconf(_SC_PAGESIZE))) {
    filler = memfd_create("epd-filler", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (filler < 0 || ftruncate(filler, kFillerBytes) != 0 ||
        fallocate(filler, 0, 0, kFillerBytes) != 0)
      return;  // Without memory even now: as it was without a guard.
    struct sigaction action = {};
    action.sa_sigaction = OnBusError;
    action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
    sigaction(SIGBUS, &action, &before);
  }

  Entry* Take() ABSL_LOCKS_EXCLUDED(mutex) {
    absl::MutexLock lock(&mutex);
    if (free.empty()) {
      auto* const chunk = new Chunk;
      chunk->next = first.load(std::memory_order_relaxed);
      for (Entry& entry : chunk->entries) free.push_back(&entry);
      first.store(chunk, std::memory_order_release);
    }
    Entry* const entry = free.back();
    free.pop_back();
    return entry;
  }
  void GiveBack(Entry* entry) ABSL_LOCKS_EXCLUDED(mutex) {
    absl::MutexLock lock(&mutex);
    free.push_back(entry);
  }

  Entry* Find(uintptr_t address) const {
    for (Chunk* chunk = first.load(std::memory_order_acquire); chunk != nullptr;
         chunk = chunk->next) {
      for (Entry& entry : chunk->entries) {
        const uintptr_t begin = entry.begin.load(std::memory_order_acquire);
        const uintptr_t end = entry.end.load(std::memory_order_acquire);
        if (address >= begin && address < end && entry.begin.load() == begin) return &entry;
      }
    }
    return nullptr;
  }

  // False: the fault is nobody's here.
  bool Fill(uintptr_t address) {
    Entry* const entry = Find(address);
    if (entry == nullptr) return false;
    const uintptr_t begin = entry->begin.load();
    const uintptr_t end = (entry->end.load() + page - 1) / page * page;
    const uintptr_t from = begin + (address - begin) / kFillerBytes * kFillerBytes;
    const size_t bytes = std::min<uintptr_t>(kFillerBytes, end - from);
    void* const filled = mmap(reinterpret_cast<void*>(from), bytes, PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_FIXED, filler, 0);
    if (filled == MAP_FAILED) return false;
    madvise(filled, bytes, MADV_DONTFORK);
    entry->lost.store(true, std::memory_order_release);
    num_lost.fetch_add(1, std::memory_order_release);
    return true;
  }

  static void OnBusError(int signal, siginfo_t* facts, void* context) {
    PageGuardTable& table = Get();
    const int saved = errno;
    const bool filled =
        facts->si_code == BUS_ADRERR && table.Fill(reinterpret_cast<uintptr_t>(facts->si_addr));
    errno = saved;
    if (filled) return;
    if ((table.before.sa_flags & SA_SIGINFO) != 0) {
      table.before.sa_sigaction(signal, facts, context);
    } else if (table.before.sa_handler != SIG_DFL && table.before.sa_handler != SIG_IGN) {
      table.before.sa_handler(signal);
    } else {
      // The access faults again, and ends the process as it would have.
      std::signal(SIGBUS, SIG_DFL);
      if (facts->si_code <= 0) raise(SIGBUS);  // Sent by somebody.
    }
  }
};

PageGuard::PageGuard(void* data, size_t bytes) : entry_(PageGuardTable::Get().Take()) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  entry_->lost.store(false);
  entry_->begin.store(begin, std::memory_order_release);
  entry_->end.store(begin + bytes, std::memory_order_release);
}

PageGuard::PageGuard(PageGuard&& other) noexcept : entry_(std::exchange(other.entry_, nullptr)) {}

PageGuard& PageGuard::operator=(PageGuard&& other) noexcept {
  if (this == &other) return *this;
  End();
  entry_ = std::exchange(other.entry_, nullptr);
  return *this;
}

PageGuard::~PageGuard() { End(); }

void PageGuard::End() {
  if (entry_ == nullptr) return;
  entry_->end.store(0, std::memory_order_release);
  PageGuardTable::Get().GiveBack(std::exchange(entry_, nullptr));
}

bool PageGuard::lost() const { return entry_ != nullptr && entry_->lost.load(); }

uint64_t PageGuard::num_lost() {
  return PageGuardTable::Get().num_lost.load(std::memory_order_acquire);
}

}  // namespace epd
