#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>

#include "client/cli/local_checks.h"

namespace epd::cli {
namespace {

// Where the program writes its answer.
constexpr int kAnswerFd = 3;

std::string WorkerBesideSelf() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return self.parent_path() / "epd-worker";
}

pid_t Start(const std::string& program, int write_end) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, write_end, kAnswerFd);
  std::string name = program;
  std::string flag = "--doctor-cuda=";
  char* const words[] = {name.data(), flag.data(), nullptr};
  pid_t child = -1;
  const int error = posix_spawn(&child, program.c_str(), &actions, nullptr, words, environ);
  posix_spawn_file_actions_destroy(&actions);
  return error == 0 ? child : -1;
}

std::string ReadToTheEnd(int fd) {
  std::string text;
  char part[4096];
  for (ssize_t got; (got = read(fd, part, sizeof part)) != 0;) {
    if (got < 0 && errno != EINTR) break;
    if (got > 0) text.append(part, static_cast<size_t>(got));
  }
  return text;
}

}  // namespace

void CheckCuda(google::protobuf::RepeatedPtrField<epd::v1::Finding>& findings) {
  const std::string program = WorkerBesideSelf();
  int ends[2];
  if (access(program.c_str(), X_OK) != 0 || pipe2(ends, O_CLOEXEC) != 0) return;
  const pid_t child = Start(program, ends[1]);
  close(ends[1]);
  const std::string answer = child < 0 ? "" : ReadToTheEnd(ends[0]);
  close(ends[0]);
  int status = 0;
  while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  epd::v1::GetDoctorResponse response;
  if (child > 0 && status == 0 && response.ParseFromString(answer)) {
    findings.MergeFrom(response.findings());
    return;
  }
  epd::v1::Finding& finding = *findings.Add();
  finding.set_what("cuda probe");
  finding.set_found("epd-worker --doctor-cuda= gave no answer");
  finding.set_consequence("nothing is known of this machine's GPUs");
  finding.set_fix("use the epctl and the epd-worker of one build; run that command by hand");
}

}  // namespace epd::cli
