#include "proto/stacks/page_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iterator>
#include <new>
#include <utility>
#include <vector>

namespace epd::stacks {
namespace {

constexpr int kTries = 8;
// A process that makes one has locked it by then.
constexpr time_t kMadeSeconds = 60;

std::string Why(const std::string& what, const std::string& of) {
  return what + " of " + of + ": " + std::strerror(errno);
}

// Closes itself.
class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() {
    const int error = errno;
    if (fd_ >= 0) close(fd_);
    errno = error;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// Everybody may make folders there, so one that somebody else has made is not used.
std::string CheckFolder(int fd, const std::string& folder) {
  struct stat facts = {};
  if (fstat(fd, &facts) != 0) return Why("stat", folder);
  if (facts.st_uid != geteuid() || (facts.st_mode & 077) != 0) {
    return "the folder " + folder + " belongs to user " + std::to_string(facts.st_uid) +
           " or others may use it; expected one of this user with mode 0700: remove it";
  }
  return "";
}

int OpenFolder(const std::string& folder) {
  return open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

std::string Unshown() { return ".new-" + std::to_string(getpid()); }

// With memory behind all of it: a handler cannot be told that there is no more.
std::string MakeFile(const std::string& folder, PageFile* file) {
  mkdir(folder.c_str(), 0700);
  const Fd dir(OpenFolder(folder));
  if (dir.get() < 0) return Why("open", folder);
  if (std::string bad = CheckFolder(dir.get(), folder); !bad.empty()) return bad;
  const std::string name = Unshown();
  unlinkat(dir.get(), name.c_str(), 0);  // Of a process that had this pid before.
  Fd fd(openat(dir.get(), name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (fd.get() < 0) return Why("open", folder + "/" + name);
  const int full = posix_fallocate(fd.get(), 0, sizeof(StackPage));
  void* at = MAP_FAILED;
  if (full == 0 && flock(fd.get(), LOCK_SH | LOCK_NB) == 0) {
    at = mmap(nullptr, sizeof(StackPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  }
  if (at == MAP_FAILED) {
    if (full != 0) errno = full;
    std::string why = Why("memory and a lock (flock) for the stacks", folder);
    unlinkat(dir.get(), name.c_str(), 0);
    return why;
  }
  file->page = new (at) StackPage();
  file->fd = fd.Release();
  return "";
}

std::string NameOf(uint64_t start_ticks) {
  return std::to_string(getpid()) + "." + std::to_string(start_ticks);
}

struct LeftOver {
  std::string name;
  int64_t asked = 0;
};

// Nothing if its process lives: it holds the lock.
bool IsLeftOver(int folder, const char* name, int64_t* asked) {
  const Fd fd(openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat facts = {};
  if (fd.get() < 0 || fstat(fd.get(), &facts) != 0) return false;
  if (name[0] == '.' && facts.st_mtime + kMadeSeconds > time(nullptr)) return false;
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return false;
  *asked = 0;
  const ssize_t got =
      pread(fd.get(), asked, sizeof *asked, static_cast<off_t>(offsetof(StackPage, asked_unix_ns)));
  return got >= 0;
}

}  // namespace

std::string MakePage(const std::string& folder, PageFile* file) {
  const uint64_t ticks = StartTicksOf("self");
  if (ticks == 0) return "/proc/self/stat cannot be read";
  file->folder = folder;
  file->name = NameOf(ticks);
  std::string bad = MakeFile(folder, file);
  // The last one that ends removes the folder.
  for (int tries = 0; tries < kTries && !bad.empty() && errno == ENOENT; ++tries)
    bad = MakeFile(folder, file);
  if (!bad.empty()) return bad;
  StackPage& page = *file->page;
  page.version = kVersion;
  page.page_bytes = sizeof(StackPage);
  page.pid = getpid();
  page.uid = geteuid();
  page.start_ticks = ticks;
  if (readlink("/proc/self/exe", page.program, kPathBytes - 1) < 0) page.program[0] = '\0';
  page.magic = kMagic;
  return "";
}

bool IsShown(const std::string& folder) {
  return access((folder + "/" + NameOf(StartTicksOf("self"))).c_str(), F_OK) == 0;
}

std::string Show(const PageFile& file) {
  const Fd dir(OpenFolder(file.folder));
  const std::string name = Unshown();
  if (dir.get() >= 0 && renameat(dir.get(), name.c_str(), dir.get(), file.name.c_str()) == 0)
    return "";
  std::string why = Why("rename", file.folder + "/" + name);
  if (dir.get() >= 0) unlinkat(dir.get(), name.c_str(), 0);
  return why;
}

void Remove(const PageFile& file) {
  unlink((file.folder + "/" + file.name).c_str());
  close(file.fd);
  rmdir(file.folder.c_str());
}

void RemoveLeftOver(const std::string& folder, size_t kept) {
  const int fd = OpenFolder(folder);
  DIR* const dir = fd < 0 ? nullptr : fdopendir(fd);
  if (dir == nullptr) return;
  std::vector<LeftOver> found;
  while (const dirent* entry = readdir(dir)) {
    LeftOver one{entry->d_name};
    if (entry->d_type == DT_REG && IsLeftOver(fd, entry->d_name, &one.asked)) found.push_back(one);
  }
  // The last ones first; those without stacks have no time.
  std::sort(found.begin(), found.end(),
            [](const LeftOver& a, const LeftOver& b) { return a.asked > b.asked; });
  for (size_t i = 0; i < found.size(); ++i) {
    if (i >= kept || found[i].asked == 0) unlinkat(fd, found[i].name.c_str(), 0);
  }
  closedir(dir);
}

uint64_t StartTicksOf(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/stat", std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  // The name, in parentheses, may have anything in it; the next field is the third.
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return 0;
  const char* at = text.c_str() + name_end + 1;
  for (int field = 3; field <= 22; ++field) {
    while (*at == ' ') ++at;
    if (field == 22) break;
    while (*at != ' ' && *at != '\0') ++at;
  }
  return std::strtoull(at, nullptr, 10);
}

}  // namespace epd::stacks
