// The edge of the failpoints: where rules come from, and what they do to this process.
#include "proto/failpoint/failpoint.h"

#ifdef EPD_FAILPOINTS

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "proto/failpoint/rules.h"

namespace epd::failpoint {
namespace {

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

[[noreturn]] void Refuse(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::abort();
}

std::vector<Rule> Read(const std::string& text) {
  std::vector<Rule> rules;
  if (const std::string bad = Parse(text, &rules); !bad.empty()) Refuse(bad);
  return rules;
}

// Which file stood there when it was read.
struct Seen {
  ino_t inode = 0;
  timespec changed = {};
  bool operator==(const Seen& other) const {
    return inode == other.inode && changed.tv_sec == other.changed.tv_sec &&
           changed.tv_nsec == other.changed.tv_nsec;
  }
};

// This process's rules and counts.
class Points {
 public:
  Points()
      : always_(Read(Environment("EPD_FAILPOINTS"))), path_(Environment("EPD_FAILPOINTS_FILE")) {}

  Action Hit(const char* point, std::initializer_list<Kind> can) {
    const std::lock_guard lock(mutex_);
    if (!path_.empty()) Look();
    const uint64_t hit = ++counts_[point];
    Action action = Decide(given_, point, hit - counts_before_[point]);
    const bool given = action.kind != Kind::kNone;
    if (!given) action = Decide(always_, point, hit);
    if (action.kind == Kind::kNone) return action;
    bool possible = action.kind <= Kind::kDelay;
    for (const Kind kind : can) possible = possible || action.kind == kind;
    if (!possible)
      Refuse(std::string("failpoint ") + point + " cannot " + std::string(Name(action.kind)));
    // Or the process that is started next would die of it, too.
    if (given && (action.kind == Kind::kKill || action.kind == Kind::kStop)) unlink(path_.c_str());
    Tell(point, action, hit);
    if (action.kind == Kind::kJump) jumped_[point] += action.nanoseconds;
    return action;
  }

  int64_t Jumped(const char* point) {
    const std::lock_guard lock(mutex_);
    return jumped_[point];
  }

 private:
  // Takes what the file says now; hits are counted from then on.
  void Look() {
    struct stat facts = {};
    const bool there = stat(path_.c_str(), &facts) == 0;
    const Seen now = there ? Seen{facts.st_ino, facts.st_ctim} : Seen();
    if (now == seen_) return;
    seen_ = now;
    counts_before_ = counts_;
    given_.clear();
    if (!there) return;
    std::ifstream file(path_, std::ios::binary);
    given_ = Read(std::string(std::istreambuf_iterator<char>(file), {}));
  }

  void Tell(const char* point, const Action& action, uint64_t hit) const {
    if (path_.empty()) return;
    const std::string line = std::to_string(getpid()) + " " + point + " " +
                             std::string(Name(action.kind)) + " " + std::to_string(hit) + "\n";
    const int fd =
        open((path_ + ".fired").c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return;  // The test misses it.
    [[maybe_unused]] const ssize_t ignored = write(fd, line.data(), line.size());
    close(fd);
  }

  std::mutex mutex_;
  const std::vector<Rule> always_;
  const std::string path_;
  Seen seen_;
  std::vector<Rule> given_;
  std::map<std::string, uint64_t> counts_;
  std::map<std::string, uint64_t> counts_before_;  // When the file was read.
  std::map<std::string, int64_t> jumped_;
};

// Never destroyed: threads meet failpoints until the process ends.
Points& All() {
  static Points& points = *new Points;
  return points;
}

// Outside of any lock.
Kind Perform(const Action& action) {
  if (action.kind == Kind::kKill) kill(getpid(), SIGKILL);
  if (action.kind == Kind::kStop) kill(getpid(), SIGSTOP);
  if (action.kind == Kind::kDelay) {
    constexpr int64_t kSecond = 1'000'000'000;
    timespec left = {.tv_sec = action.nanoseconds / kSecond,
                     .tv_nsec = action.nanoseconds % kSecond};
    while (nanosleep(&left, &left) != 0) {
    }
  }
  return action.kind;
}

Kind Hit(const char* point, std::initializer_list<Kind> can) {
  return Perform(All().Hit(point, can));
}

}  // namespace

void Reach(const char* point) { Hit(point, {}); }

bool Fails(const char* point) { return Hit(point, {Kind::kError}) == Kind::kError; }

int Times(const char* point) {
  const Kind kind = Hit(point, {Kind::kDrop, Kind::kDuplicate});
  if (kind == Kind::kDrop) return 0;
  return kind == Kind::kDuplicate ? 2 : 1;
}

bool Swaps(const char* point) { return Hit(point, {Kind::kReorder}) == Kind::kReorder; }

void Flip(const char* point, void* data, size_t bytes) {
  if (Hit(point, {Kind::kFlip}) != Kind::kFlip || bytes == 0) return;
  static_cast<unsigned char*>(data)[bytes / 2] ^= 0x10;
}

int64_t Jumped(const char* point) {
  Hit(point, {Kind::kJump});
  return All().Jumped(point);
}

}  // namespace epd::failpoint

#endif
