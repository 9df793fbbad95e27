// A real epd with its worker, in a folder of its own, for the length of a test.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace epd::testing {

// Paths of the binaries under test, from the test's runfiles.
std::string EpdBinary();
std::string WorkerBinary();

// Of every daemon here.
inline constexpr char kClusterSecret[] = "what the nodes of a test's cluster share";

// What a sanitizer has written into a log, from there to the end; "" for nothing.
std::string SanitizerReport(const std::string& log);

// A fresh folder (0700) that is removed at the end; short, because socket paths are.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class RunningDaemon {
 public:
  // Starts epd with `flags` besides its socket and worker, and waits until it listens and its
  // worker is ready.
  // `wrap`: a command and its arguments, in front of epd's, that becomes epd.
  explicit RunningDaemon(std::vector<std::string> flags = {}, std::vector<std::string> wrap = {});
  // Ends it with SIGTERM, with SIGKILL if it does not end in 10 s, which fails the test, as another
  // exit status than 0 does and a sanitizer's report, of its worker too.
  ~RunningDaemon();

  const std::string& socket_path() const { return socket_path_; }
  pid_t pid() const { return pid_; }
  // The worker of that name that runs now, or ran last; -1: there was none.
  pid_t worker_pid(const std::string& name = "cpu") const;
  // SIGKILL, reaped.
  void Kill();
  // Ends it with SIGTERM, as the destructor does, and starts it again with the same flags.
  void Restart();
  struct Said {
    int exit_code = -1;
    std::string text;  // Both streams.
  };
  // `epctl replace`: epd's process runs `program` from then on. The test's data has //client/cli:epctl.
  Said Replace(const std::string& program) const;
  std::string Log() const;
  // Where it serves gRPC on TCP; "" without --listen.
  std::string listen_address() const;

 private:
  void Start();
  void Stop();

  ScratchFolder folder_;
  std::string socket_path_;
  std::string log_path_;
  std::vector<std::string> words_;
  pid_t pid_ = -1;
};

// Waits up to `seconds` for `condition`, looking every few milliseconds.
template <typename Condition>
bool Eventually(double seconds, Condition condition);

}  // namespace epd::testing

#include <chrono>
#include <thread>

template <typename Condition>
bool epd::testing::Eventually(double seconds, Condition condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}
