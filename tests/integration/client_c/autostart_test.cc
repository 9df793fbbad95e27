// Goal: processes that find no daemon start exactly one for this user, which inherits nothing from
// them, ends by itself and leaves no socket; and where that is forbidden or impossible they are
// told what to do.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "proto/epd/v1/private_folder.h"
#include "tests/integration/client_c/harness/rank_process.h"
#include "tests/integration/client_c/harness/running_daemon.h"

namespace epd::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A runtime folder and a bin folder of its own, named by the environment as a user would.
class AutostartTest : public ::testing::Test {
 protected:
  AutostartTest() {
    if (access(kNodeSocket, F_OK) == 0) ADD_FAILURE() << kNodeSocket << " is in the way";
    const std::string bin = folder_.path() + "/bin";
    std::filesystem::create_directory(bin);
    std::filesystem::copy_file(EpdBinary(), bin + "/epd");
    std::filesystem::copy_file(WorkerBinary(), bin + "/epd-worker");
    setenv("XDG_RUNTIME_DIR", folder_.path().c_str(), 1);
    setenv("EPD_PROGRAM", (bin + "/epd").c_str(), 1);
    unsetenv("EPD_SOCKET");
    unsetenv("EPD_AUTOSTART");
  }
  // A daemon that a failed test left ends by itself; this only speeds it up.
  ~AutostartTest() override {
    for (const pid_t pid : Daemons()) kill(pid, SIGTERM);
    EXPECT_TRUE(Eventually(10, [&] { return Daemons().empty(); }));
  }

  std::string socket() const { return folder_.path() + "/epd/epd.sock"; }
  std::string Log() const {
    std::ifstream file(folder_.path() + "/epd/epd.log");
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // Processes that run this test's copy of epd.
  std::vector<pid_t> Daemons() const {
    std::vector<pid_t> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string name = entry.path().filename();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      std::error_code gone;
      const auto exe = std::filesystem::read_symlink(entry.path() / "exe", gone);
      if (!gone && exe == folder_.path() + "/bin/epd") found.push_back(std::stoi(name));
    }
    return found;
  }
  static std::string ConnectAnywhere(epd_client** client, int64_t timeout_ms = 10'000) {
    epd_connect_args args = {};
    args.struct_size = sizeof args;
    args.timeout_ms = timeout_ms;
    epd_error error = {};
    error.struct_size = sizeof error;
    epd_connect(&args, client, &error);
    return error.message;
  }
  static std::string ConnectAndLeave() {
    epd_client* client = nullptr;
    const std::string problem = ConnectAnywhere(&client);
    epd_disconnect(client);
    return problem;
  }

  ScratchFolder folder_;
};

TEST_F(AutostartTest, ManyProcessesStartOneDaemonThatInheritsNothingAndEndsByItself) {
  const std::string secret_path = folder_.path() + "/secret";
  // Not close-on-exec: every child has them, the daemon must not. One is far up.
  const int secret = open(secret_path.c_str(), O_RDWR | O_CREAT, 0600);
  const int far_up = fcntl(secret, F_DUPFD, 700);
  ASSERT_GE(far_up, 700);
  const ExchangeCase c{.num_ranks = 4};
  std::vector<std::unique_ptr<RankProcess>> ranks;
  for (uint32_t rank = 0; rank < c.num_ranks; ++rank) {
    ranks.push_back(std::make_unique<RankProcess>([&](Link& link) -> std::string {
      epd_client* client = nullptr;
      if (std::string p = ConnectAnywhere(&client); !p.empty()) return p;
      if (epd_socket_path(client) != socket())
        return std::string("socket ") + epd_socket_path(client);
      std::string problem;
      {
        ClientRank joined(client, c, rank);
        problem = joined.Join().message;
        if (problem.empty()) problem = joined.RunAndCompare(MakeExchange(c)[rank]);
        link.Say("ran");
        link.Hear();
      }
      epd_disconnect(client);
      return problem;
    }));
  }
  for (const auto& rank : ranks) EXPECT_EQ(rank->link().Hear(), "ran");
  const std::vector<pid_t> daemons = Daemons();
  ASSERT_EQ(daemons.size(), 1u);
  const std::string proc = "/proc/" + std::to_string(daemons[0]);
  EXPECT_NE(getsid(daemons[0]), getsid(0)) << "it must not die with the terminal of its first user";
  const std::string key = "event=\"worker ready\" worker_pid=";
  const std::string log = Log();
  ASSERT_THAT(log, HasSubstr(key)) << "its output goes to the log";
  EXPECT_THAT(log, HasSubstr(socket()));
  EXPECT_THAT(log, HasSubstr("group=test"));
  const int worker = std::stoi(log.substr(log.find(key) + key.size(), 12));
  for (const std::string& process : {proc, "/proc/" + std::to_string(worker)}) {
    for (const auto& fd : std::filesystem::directory_iterator(process + "/fd")) {
      EXPECT_NE(std::filesystem::read_symlink(fd.path()), secret_path) << fd.path();
      EXPECT_LT(std::stoi(fd.path().filename()), 700) << fd.path();
    }
    EXPECT_EQ(std::filesystem::read_symlink(process + "/fd/0"), "/dev/null");
    for (const char* out : {"/fd/1", "/fd/2"}) {
      EXPECT_EQ(std::filesystem::read_symlink(process + out), folder_.path() + "/epd/epd.log");
    }
  }
  struct stat stat = {};
  ASSERT_EQ(::stat((folder_.path() + "/epd").c_str(), &stat), 0);
  EXPECT_EQ(stat.st_mode & 0777, 0700u);
  for (const auto& rank : ranks) rank->link().Say("go");
  EXPECT_THAT(FinishAll(ranks), Each(""));
  EXPECT_TRUE(Eventually(10, [&] { return Daemons().empty(); }))
      << "ends within 10 s of its last session";
  EXPECT_FALSE(std::filesystem::exists(socket()));
  close(far_up);
  close(secret);
}

// Of a process: what a rank has spoiled that starts a daemon, one "NAME VALUE" in each line.
std::string Surroundings(pid_t pid) {
  const std::string proc = "/proc/" + std::to_string(pid);
  const auto read = [&](const char* name) {
    std::ifstream file(proc + name, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  sched_getaffinity(pid, sizeof cpus, &cpus);
  std::string text = "cpus " + std::to_string(CPU_COUNT(&cpus)) + "\n";
  text += "nice " + std::to_string(getpriority(PRIO_PROCESS, static_cast<id_t>(pid))) + "\n";
  text += "oom " + read("/oom_score_adj");
  const std::string environment = read("/environ");
  for (const char* name : {"LD_PRELOAD=", "MALLOC_ARENA_MAX="}) {
    if (environment.find(name) != std::string::npos) text += name + std::string("\n");
  }
  return text;
}

TEST_F(AutostartTest, ADaemonDoesNotRunAsTheRankDoesThatHappensToStartIt) {
  if (geteuid() != 0) GTEST_SKIP() << "only root may raise what a rank has lowered";
  const std::string usual = Surroundings(getpid());
  RankProcess rank([&](Link& link) -> std::string {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<size_t>(sched_getcpu()), &one);
    sched_setaffinity(0, sizeof one, &one);
    setpriority(PRIO_PROCESS, 0, 15);
    std::ofstream("/proc/self/oom_score_adj") << "300";
    setenv("MALLOC_ARENA_MAX", "1", 1);
    setenv("LD_PRELOAD", "/lib/x86_64-linux-gnu/libutil.so.1", 1);
    epd_client* client = nullptr;
    if (std::string problem = ConnectAnywhere(&client); !problem.empty()) return problem;
    link.Say("connected");
    link.Hear();
    epd_disconnect(client);
    return "";
  });
  ASSERT_EQ(rank.link().Hear(), "connected");
  const std::vector<pid_t> daemons = Daemons();
  ASSERT_EQ(daemons.size(), 1u);
  const std::string key = "event=\"worker ready\" worker_pid=";
  EXPECT_TRUE(Eventually(10, [&] { return Log().find(key) != std::string::npos; }));
  const std::string log = Log();
  const int worker = std::stoi(log.substr(log.find(key) + key.size(), 12));
  for (const pid_t pid : {daemons[0], worker}) EXPECT_EQ(Surroundings(pid), usual) << Log();
  rank.link().Say("go");
  EXPECT_EQ(rank.Finish(), "");
}

TEST_F(AutostartTest, AClientThatMeetsADaemonOnItsWayOutGetsAnother) {
  ASSERT_EQ(ConnectAndLeave(), "");
  for (int round = 0; round < 3; ++round) {
    for (const pid_t pid : Daemons()) kill(pid, SIGTERM);
    EXPECT_EQ(ConnectAndLeave(), "") << "round " << round;
  }
}

TEST_F(AutostartTest, WhereItIsForbiddenTheErrorSaysWhatToDo) {
  setenv("EPD_AUTOSTART", "0", 1);
  const std::string problem = ConnectAndLeave();
  EXPECT_THAT(problem, StartsWith("[epd:UNAVAILABLE] unset EPD_AUTOSTART"));
  EXPECT_THAT(problem, HasSubstr(kNodeSocket));
  EXPECT_THAT(problem, HasSubstr(socket()));
  EXPECT_THAT(problem, HasSubstr("no epd answers; looked at"));
  EXPECT_TRUE(Daemons().empty());
  unsetenv("EPD_AUTOSTART");
}

constexpr uid_t kStranger = 12345;

// A process of another user that runs `body`, then listens at `path` and takes what is said to it; it says so in `heard`.
class Stranger {
 public:
  Stranger(const std::string& folder, const std::string& path) {
    int pipe_ends[2];
    if (pipe(pipe_ends) != 0 || (pid_ = fork()) < 0) ADD_FAILURE() << "fork";
    if (pid_ == 0) Listen(folder, path, pipe_ends[1]);
    close(pipe_ends[1]);
    from_ = pipe_ends[0];
    char ready = 0;
    EXPECT_EQ(read(from_, &ready, 1), 1);
  }
  // What it has heard, in bytes of the first message; ends it.
  long Heard() {
    kill(pid_, SIGTERM);
    long bytes = 0;
    if (read(from_, &bytes, sizeof bytes) != sizeof bytes) bytes = 0;
    waitpid(pid_, nullptr, 0);
    close(from_);
    return bytes;
  }

 private:
  [[noreturn]] static void Listen(const std::string& folder, const std::string& path, int out) {
    if (setgid(kStranger) != 0 || setuid(kStranger) != 0) _exit(1);
    umask(0);
    mkdir(folder.c_str(), 0755);
    const int listener = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    if (bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
        listen(listener, 8) != 0 || write(out, "r", 1) != 1) {
      _exit(1);
    }
    while (true) {
      const int client = accept(listener, nullptr, nullptr);
      char message[4096];
      const long got = read(client, message, sizeof message);
      if (got > 0 && write(out, &got, sizeof got) != sizeof got) _exit(1);
      close(client);
    }
  }

  pid_t pid_ = -1;
  int from_ = -1;
};

class StrangerTest : public AutostartTest {
 protected:
  StrangerTest() {
    if (geteuid() != 0) return;
    std::filesystem::permissions(folder_.path(), std::filesystem::perms(01777));
  }
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  }
};

TEST_F(StrangerTest, WhoeverMadeThePrivateFolderFirstHearsNothing) {
  Stranger stranger(folder_.path() + "/epd", socket());
  const std::string problem = ConnectAndLeave();
  EXPECT_THAT(problem, StartsWith("[epd:PERMISSION_DENIED]"));
  EXPECT_THAT(problem, AllOf(HasSubstr(folder_.path() + "/epd"), HasSubstr("of user 12345"),
                             HasSubstr("set XDG_RUNTIME_DIR")));
  EXPECT_EQ(stranger.Heard(), 0);
  EXPECT_TRUE(Daemons().empty());
}

TEST_F(StrangerTest, RootLeavesNothingInAUsersRuntimeFolder) {
  const std::string users = folder_.path() + "/users";
  ASSERT_EQ(mkdir(users.c_str(), 0700), 0);
  ASSERT_EQ(chown(users.c_str(), kStranger, kStranger), 0);
  setenv("XDG_RUNTIME_DIR", users.c_str(), 1);
  const std::string problem = ConnectAndLeave();
  EXPECT_THAT(problem, StartsWith("[epd:PERMISSION_DENIED]"));
  EXPECT_THAT(problem, AllOf(HasSubstr("XDG_RUNTIME_DIR=" + users + " is of user 12345"),
                             HasSubstr("sudo -E"), HasSubstr("[EPD-1404]")));
  EXPECT_TRUE(std::filesystem::is_empty(users));
  EXPECT_TRUE(Daemons().empty());
}

TEST_F(StrangerTest, AStrangerAtTheSocketThatWasAskedForHearsNothingUnlessItIsTrusted) {
  const std::string path = folder_.path() + "/other.sock";
  setenv("EPD_SOCKET", path.c_str(), 1);
  {
    Stranger stranger(folder_.path() + "/none", path);
    const std::string problem = ConnectAndLeave();
    EXPECT_THAT(problem, StartsWith("[epd:PERMISSION_DENIED]"));
    EXPECT_THAT(problem,
                AllOf(HasSubstr(path), HasSubstr("uid 12345"), HasSubstr("expected one of 0;"),
                      HasSubstr("EPD_SERVER_UID=12345"), HasSubstr("/etc/epd/client.conf")));
    setenv("EPD_SERVER_UID", "12346", 1);
    EXPECT_THAT(ConnectAndLeave(), HasSubstr("expected one of 0, 12346;"));
    setenv("EPD_SERVER_UID", "anybody", 1);
    EXPECT_THAT(ConnectAndLeave(), HasSubstr("EPD_SERVER_UID: got 'anybody'"));
    EXPECT_EQ(stranger.Heard(), 0);
  }
  unlink(path.c_str());
  Stranger trusted(folder_.path() + "/none", path);
  setenv("EPD_SERVER_UID", "12345", 1);
  EXPECT_THAT(ConnectAndLeave(), HasSubstr("did not answer"));
  EXPECT_GT(trusted.Heard(), 0);
  unsetenv("EPD_SERVER_UID");
  unsetenv("EPD_SOCKET");
}

TEST_F(StrangerTest, AProgramThatOthersOwnOrMayWriteToIsNotStarted) {
  const std::string program = folder_.path() + "/bin/epd";
  std::filesystem::permissions(program, std::filesystem::perms(0757));
  EXPECT_THAT(ConnectAndLeave(), AllOf(StartsWith("[epd:FAILED_PRECONDITION]"),
                                       HasSubstr("(not run: others may write to it)")));
  std::filesystem::permissions(program, std::filesystem::perms(0755));
  ASSERT_EQ(chown(program.c_str(), kStranger, kStranger), 0);
  EXPECT_THAT(ConnectAndLeave(), HasSubstr("(not run: it belongs to uid 12345)"));
  ASSERT_EQ(chown(program.c_str(), 0, 0), 0);
  std::filesystem::permissions(folder_.path() + "/bin", std::filesystem::perms(0777));
  EXPECT_THAT(ConnectAndLeave(), HasSubstr("(not run: others may write to its folder)"));
  EXPECT_TRUE(Daemons().empty());
}

TEST_F(AutostartTest, WhatThePathHoldsIsNeverStarted) {
  const std::string path = std::getenv("PATH") == nullptr ? "" : std::getenv("PATH");
  setenv("PATH", (folder_.path() + "/bin:" + path).c_str(), 1);
  unsetenv("EPD_PROGRAM");
  const std::string problem = ConnectAndLeave();
  EXPECT_THAT(problem, StartsWith("[epd:FAILED_PRECONDITION]"));
  EXPECT_THAT(problem, HasSubstr("set EPD_PROGRAM"));
  EXPECT_TRUE(Daemons().empty());
  setenv("PATH", path.c_str(), 1);
}

TEST_F(AutostartTest, WhatAKilledDaemonLeftIsRemovedByTheNextWhoFindsNobodyThere) {
  ASSERT_EQ(ConnectAndLeave(), "");
  for (const pid_t pid : Daemons()) kill(pid, SIGKILL);
  ASSERT_TRUE(Eventually(10, [&] { return Daemons().empty(); }));
  const std::string grpc = folder_.path() + "/epd/epd-grpc.sock";
  ASSERT_TRUE(std::filesystem::exists(socket()) && std::filesystem::exists(grpc));
  setenv("EPD_SOCKET", socket().c_str(), 1);
  // A process that is being killed loses its program before it loses its sockets.
  EXPECT_TRUE(Eventually(10, [] {
    return ConnectAndLeave().find("no epd answers") != std::string::npos;
  })) << ConnectAndLeave();
  for (const std::string& left : {socket(), grpc, socket() + ".lock"})
    EXPECT_FALSE(std::filesystem::exists(left)) << left;
  unsetenv("EPD_SOCKET");
}

// A cleaner has taken its lock file, and somebody has put another socket in its place; it is stopped, so that it cannot mend that.
TEST_F(AutostartTest, WhatALivingDaemonHasIsNotRemovedAndItMakesItsSocketAnew) {
  epd_client* before = nullptr;
  ASSERT_EQ(ConnectAnywhere(&before), "");
  const std::vector<pid_t> daemons = Daemons();
  ASSERT_EQ(daemons.size(), 1u);
  const std::string grpc = folder_.path() + "/epd/epd-grpc.sock";
  ASSERT_EQ(kill(daemons[0], SIGSTOP), 0);
  std::filesystem::remove(socket() + ".lock");
  std::ofstream(socket() + ".lock") << "1\n";
  std::filesystem::remove(socket());
  {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    socket().copy(address.sun_path, sizeof address.sun_path - 1);
    const int stale = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    ASSERT_EQ(bind(stale, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    close(stale);
  }
  setenv("EPD_SOCKET", socket().c_str(), 1);
  EXPECT_THAT(ConnectAndLeave(), HasSubstr("no epd answers"));
  EXPECT_TRUE(std::filesystem::exists(grpc)) << "somebody is behind it";
  kill(daemons[0], SIGCONT);
  EXPECT_TRUE(Eventually(10, [] { return ConnectAndLeave().empty(); })) << Log();
  EXPECT_EQ(Daemons(), daemons);
  epd_disconnect(before);
  unsetenv("EPD_SOCKET");
}

TEST_F(AutostartTest, AFolderThatOthersCanEnterIsRefused) {
  ASSERT_EQ(mkdir((folder_.path() + "/epd").c_str(), 0755), 0);
  EXPECT_THAT(ConnectAndLeave(), StartsWith("[epd:PERMISSION_DENIED]"));
  EXPECT_TRUE(Daemons().empty());
}

// /proc takes no folders, not even root's.
TEST_F(AutostartTest, AFolderThatCannotBeMadeIsNamed) {
  setenv("XDG_RUNTIME_DIR", "/proc", 1);
  const std::string problem = ConnectAndLeave();
  EXPECT_THAT(problem, StartsWith("[epd:FAILED_PRECONDITION]"));
  EXPECT_THAT(problem, AllOf(HasSubstr("cannot make /proc/epd for a private epd"),
                             HasSubstr("XDG_RUNTIME_DIR=/proc"), HasSubstr("[EPD-1404]")));
  EXPECT_TRUE(Daemons().empty());
}

TEST_F(AutostartTest, ARuntimeFolderThatIsNoneIsNamedAndNothingIsLeftBehind) {
  const std::string file = folder_.path() + "/file";
  std::ofstream(file) << "";
  const struct {
    std::string value, code, text;
  } cases[] = {
      {folder_.path() + "/missing", "FAILED_PRECONDITION", "there is no such folder"},
      {"relative", "INVALID_ARGUMENT", "got 'relative', expected an absolute path"},
      {file, "FAILED_PRECONDITION", "is no folder"},
      {folder_.path() + "/" + std::string(107 - folder_.path().size(), 'x'), "INVALID_ARGUMENT",
       "may have 107"},
  };
  for (const auto& c : cases) {
    setenv("XDG_RUNTIME_DIR", c.value.c_str(), 1);
    const std::string problem = ConnectAndLeave();
    EXPECT_THAT(problem, StartsWith("[epd:" + c.code + "]"));
    EXPECT_THAT(problem, AllOf(HasSubstr("XDG_RUNTIME_DIR"), HasSubstr(c.text),
                               HasSubstr("unset it"), HasSubstr(kNodeSocket)));
    EXPECT_FALSE(std::filesystem::exists(c.value + "/epd"));
  }
  EXPECT_TRUE(Daemons().empty());
}

TEST_F(AutostartTest, ADaemonWhoseLogDoesNotFitOnTheDiskServesAllTheSame) {
  const std::string script = folder_.path() + "/on_a_full_disk";
  std::ofstream(script) << "#!/bin/sh\nexec " << folder_.path()
                        << "/bin/epd \"$@\" --log_file=/dev/full 2>/dev/full\n";
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  setenv("EPD_PROGRAM", script.c_str(), 1);
  EXPECT_EQ(ConnectAndLeave(), "");
  EXPECT_EQ(Daemons().size(), 1u);
  EXPECT_EQ(Log(), "");
}

TEST_F(AutostartTest, ADaemonThatIsNotThereIsNamed) {
  setenv("EPD_PROGRAM", "/nowhere/epd", 1);
  const std::string problem = ConnectAndLeave();
  EXPECT_THAT(problem, StartsWith("[epd:FAILED_PRECONDITION]"));
  EXPECT_THAT(problem, HasSubstr("/nowhere/epd"));
}

TEST_F(AutostartTest, ADaemonThatEndsAtOnceIsToldAtOnceWithItsLastLine) {
  const std::string script = folder_.path() + "/broken";
  std::ofstream(script) << "#!/bin/sh\necho begins\necho broken on purpose >&2\nexit 3\n";
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  setenv("EPD_PROGRAM", script.c_str(), 1);
  for (int round = 0; round < 2; ++round) {
    epd_client* client = nullptr;
    const auto began = std::chrono::steady_clock::now();
    const std::string problem = ConnectAnywhere(&client, /*timeout_ms=*/60'000);
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
    EXPECT_THAT(problem, StartsWith("[epd:FAILED_PRECONDITION]"));
    EXPECT_THAT(problem, AllOf(HasSubstr("its last line: broken on purpose (log: "),
                               HasSubstr("[EPD-1406]")));
  }
}

TEST_F(AutostartTest, ADaemonThatSaysNothingIsNotToldWithWhatAnotherOneSaid) {
  ASSERT_EQ(ConnectAndLeave(), "");  // It leaves a log.
  for (const pid_t pid : Daemons()) kill(pid, SIGTERM);
  ASSERT_TRUE(Eventually(10, [&] { return Daemons().empty(); }));
  const std::string script = folder_.path() + "/silent";
  std::ofstream(script) << "#!/bin/sh\nexit 0\n";
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  setenv("EPD_PROGRAM", script.c_str(), 1);
  EXPECT_THAT(ConnectAndLeave(), HasSubstr("has ended; it wrote nothing"));
}

TEST_F(AutostartTest, AProgramThatTheKernelDoesNotRunIsNamedWithWhy) {
  const std::string garbage = folder_.path() + "/garbage";
  std::ofstream(garbage) << "no program\n";
  std::filesystem::permissions(garbage, std::filesystem::perms::owner_all);
  setenv("EPD_PROGRAM", garbage.c_str(), 1);
  EXPECT_THAT(ConnectAndLeave(),
              HasSubstr("cannot be run as this user's private epd: Exec format"));
  std::filesystem::permissions(garbage, std::filesystem::perms::owner_read);
  EXPECT_THAT(ConnectAndLeave(), HasSubstr("(not run: this user may not execute it)"));
}

// A folder that somebody works in is, once it is removed, what a container has whose mount was removed outside.
TEST_F(AutostartTest, AStaleMountSaysThatItIsOne) {
  const std::string folder = folder_.path() + "/mount";
  const std::filesystem::path before = std::filesystem::current_path();
  ASSERT_TRUE(std::filesystem::create_directory(folder));
  std::filesystem::current_path(folder);
  ASSERT_TRUE(std::filesystem::remove(folder));
  setenv("EPD_SOCKET", "./epd.sock", 1);
  const std::string problem = ConnectAndLeave();
  std::filesystem::current_path(before);
  unsetenv("EPD_SOCKET");
  EXPECT_THAT(problem, StartsWith("[epd:FAILED_PRECONDITION]"));
  EXPECT_THAT(problem, AllOf(HasSubstr("is a stale mount"),
                             HasSubstr("RuntimeDirectoryPreserve=yes"), HasSubstr("[EPD-1405]")));
}

TEST_F(AutostartTest, AFolderInTheSocketsPlaceIsNamed) {
  setenv("EPD_SOCKET", folder_.path().c_str(), 1);
  EXPECT_THAT(ConnectAndLeave(), HasSubstr("is no socket but a folder; name the socket in it, " +
                                           folder_.path() + "/epd.sock"));
  const std::string made_by_a_mount = folder_.path() + "/absent.sock";
  ASSERT_TRUE(std::filesystem::create_directory(made_by_a_mount));
  setenv("EPD_SOCKET", made_by_a_mount.c_str(), 1);
  EXPECT_THAT(ConnectAndLeave(), HasSubstr("as container engines make where they are to mount"));
  unsetenv("EPD_SOCKET");
}

TEST_F(AutostartTest, ASocketThatWasAskedForIsNeverStarted) {
  setenv("EPD_SOCKET", (folder_.path() + "/other.sock").c_str(), 1);
  const std::string problem = ConnectAndLeave();
  EXPECT_THAT(problem, StartsWith("[epd:UNAVAILABLE]"));
  EXPECT_THAT(problem, HasSubstr("other.sock"));
  EXPECT_TRUE(Daemons().empty());
  unsetenv("EPD_SOCKET");
}

}  // namespace
}  // namespace epd::testing
