#include "proto/stacks/stack_writer.h"

#include <dirent.h>
#include <dlfcn.h>
#include <elf.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <iterator>

#include "proto/stacks/page_file.h"
#include "proto/stacks/stack_scan.h"

namespace epd::stacks {
namespace {

constexpr size_t kKept = 4;
constexpr int kHandlerFrames = 8;  // Of the handler itself, at most.
// A round that nobody has completed by then has a thread that does not run; another may begin.
constexpr int64_t kRoundNs = 2'000'000'000;
constexpr int64_t kMomentNs = 200'000'000;

// A handler has nothing but globals. All are written before the signal is taken.
PageFile g_file;
std::atomic<StackPage*> g_page{nullptr};
int g_tasks = -1;  // /proc/self/task: a process that hangs may be out of descriptors.
std::atomic<bool> g_asking{false};
struct sigaction g_before = {};  // What SIGUSR2 did.
// _dl_find_object(), which takes no lock; null before glibc 2.35.
FindObject g_find_object = nullptr;
Frames g_frames = Frames::kUnwound;

int64_t UnixNs() {
  timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void Pause(int64_t nanoseconds) {
  timespec left = {.tv_sec = 0, .tv_nsec = static_cast<long>(nanoseconds)};
  while (nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

// Where a signal has interrupted a thread; zeros: not known.
struct Place {
  uint64_t at = 0;
  uint64_t stack = 0;
};

Place Interrupted(const void* context) {
  if (context == nullptr) return {};
  [[maybe_unused]] const auto& machine = static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  return {static_cast<uint64_t>(machine.gregs[REG_RIP]),
          static_cast<uint64_t>(machine.gregs[REG_RSP])};
#elif defined(__aarch64__)
  return {machine.pc, machine.sp};
#else
  return {};
#endif
}

void Unwind(const Place& interrupted, ThreadStack& stack) {
  void* frames[kMaxFrames + kHandlerFrames];
  const int got = backtrace(frames, static_cast<int>(std::size(frames)));
  // What the thread does begins where the signal has interrupted it.
  int first = 0;
  while (first < got && reinterpret_cast<uint64_t>(frames[first]) != interrupted.at) ++first;
  if (first == got) first = 0;
  stack.num_frames = std::min(static_cast<uint32_t>(got - first), kMaxFrames);
  for (uint32_t i = 0; i < stack.num_frames; ++i)
    stack.frames[i] = reinterpret_cast<uint64_t>(frames[first + static_cast<int>(i)]);
  stack.flags = got == static_cast<int>(std::size(frames)) ? kIsCut : 0;
}

void Scan(const Place& interrupted, ThreadStack& stack) {
  stack.frames[0] = interrupted.at;
  const size_t found =
      ScanStack(interrupted.stack, g_find_object, stack.frames + 1, kMaxFrames - 1);
  stack.num_frames = static_cast<uint32_t>(found) + 1;
  stack.flags = kIsScanned | (found == kMaxFrames - 1 ? kIsCut : 0);
}

// Of the notes of an ELF file that is mapped at [begin, end).
void CopyBuildId(uint64_t begin, uint64_t end, uint64_t bias, Module& module) {
  const auto* header = reinterpret_cast<const ElfW(Ehdr)*>(begin);
  if (end - begin < sizeof *header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return;
  const uint64_t table = begin + header->e_phoff;
  if (table + uint64_t{header->e_phnum} * sizeof(ElfW(Phdr)) > end) return;
  const auto* segments = reinterpret_cast<const ElfW(Phdr)*>(table);
  for (int i = 0; i < header->e_phnum; ++i) {
    uint64_t at = bias + segments[i].p_vaddr;
    const uint64_t last = at + segments[i].p_memsz;
    if (segments[i].p_type != PT_NOTE || at < begin || last > end) continue;
    while (at + sizeof(ElfW(Nhdr)) <= last) {
      const auto* note = reinterpret_cast<const ElfW(Nhdr)*>(at);
      const uint64_t name = at + sizeof *note;
      const uint64_t text = name + ((note->n_namesz + 3) & ~3ull);
      at = text + ((note->n_descsz + 3) & ~3ull);
      if (at > last) break;
      const bool is_id = note->n_type == NT_GNU_BUILD_ID && note->n_namesz == 4 &&
                         std::memcmp(reinterpret_cast<const char*>(name), "GNU", 4) == 0;
      if (!is_id || note->n_descsz > kMaxBuildIdBytes) continue;
      std::memcpy(module.build_id, reinterpret_cast<const void*>(text), note->n_descsz);
      module.build_id_bytes = note->n_descsz;
      return;
    }
  }
}

// Two threads may note the same module; a reader takes either.
void NoteModule(StackPage& page, uint64_t address) {
  const uint32_t known = page.num_modules.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < std::min(known, kMaxModules); ++i) {
    const Module& module = page.modules[i];
    if (module.written.load(std::memory_order_acquire) == 1 && address >= module.begin &&
        address < module.end)
      return;
  }
  dl_find_object found = {};
  if (known >= kMaxModules || g_find_object == nullptr) return;
  if (g_find_object(reinterpret_cast<void*>(address), &found) != 0) return;
  const uint32_t place = page.num_modules.fetch_add(1, std::memory_order_acq_rel);
  if (place >= kMaxModules) return;
  Module& module = page.modules[place];
  module.begin = reinterpret_cast<uint64_t>(found.dlfo_map_start);
  module.end = reinterpret_cast<uint64_t>(found.dlfo_map_end);
  module.bias = found.dlfo_link_map->l_addr;
  const char* const path = found.dlfo_link_map->l_name;
  for (uint32_t i = 0; path != nullptr && path[i] != '\0' && i < kPathBytes - 1; ++i)
    module.path[i] = path[i];
  CopyBuildId(module.begin, module.end, module.bias, module);
  module.written.store(1, std::memory_order_release);
}

int32_t OwnTid() { return static_cast<int32_t>(syscall(SYS_gettid)); }

void WriteOwn(StackPage& page, const void* context) {
  const uint32_t round = page.round.load(std::memory_order_acquire);
  const uint32_t count = std::min(page.num_threads.load(std::memory_order_relaxed), kMaxThreads);
  const int32_t tid = OwnTid();
  uint32_t place = 0;
  while (place < count && page.threads[place].tid.load(std::memory_order_relaxed) != tid) ++place;
  if (place == count) return;
  ThreadStack& stack = page.threads[place];
  if (g_frames == Frames::kScanned && context != nullptr) {
    Scan(Interrupted(context), stack);
  } else {
    Unwind(Interrupted(context), stack);
  }
  for (uint32_t i = 0; i < stack.num_frames; ++i) NoteModule(page, stack.frames[i]);
  prctl(PR_GET_NAME, stack.name);
  stack.written.store(round, std::memory_order_release);
}

// As getdents64 writes it.
struct Entry {
  uint64_t inode;
  int64_t offset;
  uint16_t bytes;
  uint8_t type;
  char name[];
};

int32_t NumberOf(const char* name) {
  int32_t number = 0;
  for (; *name >= '0' && *name <= '9'; ++name) number = number * 10 + (*name - '0');
  return *name == '\0' ? number : 0;
}

// Puts each thread into the page.
void NoteThreads(StackPage& page) {
  alignas(Entry) char entries[1024];
  uint32_t count = 0;
  uint32_t left_out = 0;
  lseek(g_tasks, 0, SEEK_SET);
  for (;;) {
    const long got = syscall(SYS_getdents64, g_tasks, entries, sizeof entries);
    if (got <= 0) break;
    for (long at = 0; at < got;) {
      const auto* entry = reinterpret_cast<const Entry*>(entries + at);
      at += entry->bytes;
      const int32_t tid = NumberOf(entry->name);
      if (tid == 0) continue;
      if (count == kMaxThreads) {
        ++left_out;
      } else {
        page.threads[count].written.store(0, std::memory_order_relaxed);
        page.threads[count++].tid.store(tid, std::memory_order_relaxed);
      }
    }
  }
  page.num_left_out.store(left_out, std::memory_order_relaxed);
  page.num_threads.store(count, std::memory_order_relaxed);
}

// Begins a round, unless one goes on.
void AskAll(StackPage& page, const void* context) {
  if (g_asking.exchange(true, std::memory_order_acquire)) return;
  const int64_t now = UnixNs();
  const int64_t before = page.asked_unix_ns.load(std::memory_order_relaxed);
  if (IsWhole(page) || now - before > kRoundNs || now < before) {
    NoteThreads(page);
    page.asked_unix_ns.store(now, std::memory_order_relaxed);
    page.round.fetch_add(1, std::memory_order_acq_rel);
    const int32_t own = OwnTid();
    const uint32_t count = page.num_threads.load(std::memory_order_relaxed);
    for (uint32_t i = 0; i < count; ++i) {
      const int32_t tid = page.threads[i].tid.load(std::memory_order_relaxed);
      if (tid != own) syscall(SYS_tgkill, page.pid, tid, SIGUSR2);
    }
    WriteOwn(page, context);
  }
  g_asking.store(false, std::memory_order_release);
}

void OnSignal(int /*signal*/, siginfo_t* info, void* context) {
  const int error = errno;
  StackPage* const page = g_page.load(std::memory_order_acquire);
  // A forked child has this handler, but no page.
  if (page != nullptr && page->pid == getpid()) {
    if (info->si_code == SI_TKILL && info->si_pid == page->pid) {
      WriteOwn(*page, context);
    } else if (info->si_code == SI_USER && (info->si_uid == page->uid || info->si_uid == 0)) {
      AskAll(*page, context);
    }
  }
  errno = error;
}

// The first call loads the unwinder, which no handler may.
void LoadUnwinder() {
  void* frames[4];
  backtrace(frames, static_cast<int>(std::size(frames)));
  g_find_object = reinterpret_cast<FindObject>(dlsym(RTLD_DEFAULT, "_dl_find_object"));
}

bool IsTaken() {
  struct sigaction current = {};
  sigaction(SIGUSR2, nullptr, &current);
  return (current.sa_flags & SA_SIGINFO) != 0 ||
         (current.sa_handler != SIG_DFL && current.sa_handler != SIG_IGN);
}

void TakeSignal() {
  struct sigaction action = {};
  action.sa_sigaction = OnSignal;
  action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
  sigaction(SIGUSR2, &action, &g_before);
}

void GiveSignalBack() { sigaction(SIGUSR2, &g_before, nullptr); }

}  // namespace

std::string Start(Frames frames, const std::string& folder) {
  if (g_page.load() != nullptr) return "this process has a page of stacks already";
  const std::string where = folder.empty() ? kFolderPrefix + std::to_string(geteuid()) : folder;
  if (IsShown(where)) return "";  // By another copy of this library.
  if (IsTaken()) return "the program handles SIGUSR2 itself";
  RemoveLeftOver(where, kKept);
  g_tasks = open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (g_tasks < 0) return std::string("open of /proc/self/task: ") + std::strerror(errno);
  PageFile file;
  std::string bad = MakePage(where, &file);
  if (bad.empty()) {
    LoadUnwinder();
    g_frames = frames;
    g_file = file;
    g_page.store(file.page);
    TakeSignal();  // Before anybody can find the page, and so send the signal.
    bad = Show(file);
    if (bad.empty()) return "";
    GiveSignalBack();
    g_page.store(nullptr);
    close(file.fd);
  }
  close(g_tasks);
  g_tasks = -1;
  return bad;
}

void Stop() {
  StackPage* const page = g_page.load();
  if (page == nullptr || page->pid != getpid()) return;
  signal(SIGUSR2, SIG_IGN);  // It may be on its way.
  g_page.store(nullptr);
  Remove(g_file);
  RemoveLeftOver(g_file.folder, kKept);
  rmdir(g_file.folder.c_str());
}

void WriteBeforeTheEnd() {
  StackPage* const page = g_page.load(std::memory_order_acquire);
  if (page == nullptr || page->pid != getpid()) return;
  AskAll(*page, nullptr);
  for (int64_t waited = 0; waited < kMomentNs && !IsWhole(*page); waited += kMomentNs / 20)
    Pause(kMomentNs / 20);
}

}  // namespace epd::stacks
