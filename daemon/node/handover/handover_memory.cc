#include "daemon/node/handover/handover_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace epd {
namespace {

// The number of the memory's descriptor.
constexpr char kVariable[] = "EPD_HANDOVER_FD";
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;

bool IsSealed(int fd) {
  const int seals = fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & kSeals) == kSeals;
}

}  // namespace

absl::StatusOr<UniqueFd> WriteHandover(const v1::Handover& handover) {
  const std::string bytes = handover.SerializeAsString();
  UniqueFd fd(memfd_create("epd-handover", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  size_t written = 0;
  while (fd.valid() && written < bytes.size()) {
    const ssize_t now = write(fd.get(), bytes.data() + written, bytes.size() - written);
    if (now < 0 && errno == EINTR) continue;
    if (now <= 0) break;
    written += static_cast<size_t>(now);
  }
  if (fd.valid() && written == bytes.size() && fcntl(fd.get(), F_ADD_SEALS, kSeals) == 0) return fd;
  return absl::ResourceExhaustedError(
      absl::StrCat("memory for the state of ", bytes.size(), " bytes: ", std::strerror(errno)));
}

absl::StatusOr<std::optional<v1::Handover>> TakeHandover() {
  const char* number = std::getenv(kVariable);
  if (number == nullptr) return std::nullopt;
  int opened = -1;
  const bool is_number = absl::SimpleAtoi(number, &opened) && opened > STDERR_FILENO;
  const std::string given = number;
  unsetenv(kVariable);
  // Anything else than what WriteHandover makes is not touched.
  if (!is_number || !IsSealed(opened)) {
    return absl::DataLossError(absl::StrCat(kVariable, ": got '", given,
                                            "', expected the number of sealed memory; unset it"));
  }
  const UniqueFd fd(opened);
  struct stat file = {};
  fstat(fd.get(), &file);
  std::string bytes(static_cast<size_t>(file.st_size), '\0');
  v1::Handover handover;
  if (pread(fd.get(), bytes.data(), bytes.size(), 0) != file.st_size ||
      !handover.ParseFromString(bytes)) {
    return absl::DataLossError(absl::StrCat("handover: its ", bytes.size(),
                                            " bytes are not of handover.proto; start epd anew"));
  }
  return std::optional<v1::Handover>(std::move(handover));
}

absl::Status RunReplacement(const std::string& program, const std::vector<std::string>& args,
                            const UniqueFd& state) {
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  const std::string variable = absl::StrCat(kVariable, "=", state.get());
  std::vector<char*> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  environment.push_back(const_cast<char*>(variable.c_str()));
  environment.push_back(nullptr);
  fcntl(state.get(), F_SETFD, 0);
  execve(program.c_str(), argv.data(), environment.data());
  const int error = errno;
  fcntl(state.get(), F_SETFD, FD_CLOEXEC);
  return absl::FailedPreconditionError(
      absl::StrCat("cannot run '", program, "': ", std::strerror(error)));
}

}  // namespace epd
