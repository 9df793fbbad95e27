#include "tests/integration/client_c/harness/running_daemon.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace epd::testing {
namespace {

constexpr double kEndSeconds = 10;

[[noreturn]] void Die(const char* what) {
  std::perror(what);
  std::abort();
}

pid_t Spawn(std::vector<std::string> words, const std::string& log_path) {
  const int log = open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid < 0) Die("fork");
  if (pid > 0) {
    close(log);
    return pid;
  }
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  execv(argv[0], argv.data());
  _exit(127);
}

}  // namespace

std::string SanitizerReport(const std::string& log) {
  size_t at = std::string::npos;
  for (const char* sign : {"Sanitizer: ", "runtime error: "}) at = std::min(at, log.find(sign));
  return at == std::string::npos ? "" : log.substr(log.rfind('\n', at) + 1);
}

std::string EpdBinary() { return std::filesystem::absolute("daemon/epd"); }
std::string WorkerBinary() { return std::filesystem::absolute("daemon/worker/epd-worker"); }

ScratchFolder::ScratchFolder() {
  char folder[] = "/tmp/epd-test-XXXXXX";
  if (mkdtemp(folder) == nullptr) Die("mkdtemp");
  path_ = folder;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

RunningDaemon::RunningDaemon(std::vector<std::string> flags, std::vector<std::string> wrap)
    : socket_path_(folder_.path() + "/epd.sock"),
      log_path_(folder_.path() + "/log"),
      words_(std::move(wrap)) {
  const std::string secret = folder_.path() + "/cluster-secret";
  std::ofstream(secret) << kClusterSecret;
  std::filesystem::permissions(secret, std::filesystem::perms::owner_read);
  words_.insert(words_.end(),
                {EpdBinary(), "--socket=" + socket_path_, "--worker=" + WorkerBinary(),
                 "--cluster_secret=" + secret, "--insecure=yes"});
  words_.insert(words_.end(), flags.begin(), flags.end());
  Start();
}

void RunningDaemon::Start() {
  const pid_t before = worker_pid();
  pid_ = Spawn(words_, log_path_);
  const bool up = Eventually(30, [&] { return worker_pid() > 0 && worker_pid() != before; });
  EXPECT_TRUE(up) << Log();
}

void RunningDaemon::Restart() {
  Stop();
  Start();
}

RunningDaemon::Said RunningDaemon::Replace(const std::string& program) const {
  const std::string command = std::filesystem::absolute("client/cli/epctl").string() +
                              " --socket=" + socket_path_ + " replace --program=" + program +
                              " 2>&1";
  FILE* const pipe = popen(command.c_str(), "r");
  Said said;
  std::array<char, 4096> buffer;
  while (fgets(buffer.data(), buffer.size(), pipe) != nullptr) said.text += buffer.data();
  const int status = pclose(pipe);
  if (WIFEXITED(status)) said.exit_code = WEXITSTATUS(status);
  return said;
}

RunningDaemon::~RunningDaemon() {
  if (pid_ >= 0) Stop();
  EXPECT_EQ(SanitizerReport(Log()), "");
  if (::testing::Test::HasFailure()) std::fprintf(stderr, "epd's log:\n%s\n", Log().c_str());
}

void RunningDaemon::Stop() {
  kill(pid_, SIGTERM);
  int status = 0;
  const bool ended =
      Eventually(kEndSeconds, [&] { return waitpid(pid_, &status, WNOHANG) == pid_; });
  EXPECT_TRUE(ended) << "epd did not end after SIGTERM";
  if (!ended) return Kill();
  EXPECT_EQ(status, 0) << "epd did not end well";
  pid_ = -1;
}

void RunningDaemon::Kill() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

std::string RunningDaemon::Log() const {
  std::ifstream file(log_path_);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string RunningDaemon::listen_address() const {
  const std::string log = Log();
  const std::string key = " listen=";
  const size_t line = log.find("event=\"serving\"");
  const size_t at = line == std::string::npos ? line : log.find(key, line);
  if (at == std::string::npos) return "";
  const size_t begin = at + key.size();
  return log.substr(begin, log.find_first_of(" \n", begin) - begin);
}

pid_t RunningDaemon::worker_pid(const std::string& name) const {
  const std::string log = Log();
  const std::string key = "event=\"worker ready\" worker_pid=";
  for (size_t at = log.rfind(key); at != std::string::npos; at = log.rfind(key, at - 1)) {
    const std::string line = log.substr(at, log.find('\n', at) - at);
    if (line.find(" worker=" + name + " ") == std::string::npos) continue;
    return static_cast<pid_t>(std::stol(line.substr(key.size(), 12)));
  }
  return -1;
}

}  // namespace epd::testing
