#include "proto/stacks/page_reader.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "proto/stacks/page_file.h"

namespace epd::stacks {
namespace {

constexpr size_t kModules = offsetof(StackPage, modules);
constexpr size_t kThreads = offsetof(StackPage, threads);

std::string PathOf(int pid) {
  const uint64_t ticks = StartTicksOf(std::to_string(pid));
  return kFolderPrefix + std::to_string(geteuid()) + "/" + std::to_string(pid) + "." +
         std::to_string(ticks);
}

}  // namespace

std::string StatusOf(int pid, const std::string& name) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, name.size() + 1, name + ":") != 0) continue;
    const size_t begin = line.find_first_not_of(" \t", name.size() + 1);
    const size_t end = line.find_last_not_of(" \t");
    return begin == std::string::npos ? "" : line.substr(begin, end + 1 - begin);
  }
  return "";
}

bool HandlesTheSignal(int pid, uint32_t uid) {
  std::istringstream uids(StatusOf(pid, "Uid"));
  uint64_t real = 0;
  uint64_t effective = 0;
  if (!(uids >> real >> effective) || effective != uid) return false;
  const std::string caught = StatusOf(pid, "SigCgt");
  return (std::strtoull(caught.c_str(), nullptr, 16) >> (SIGUSR2 - 1) & 1) != 0;
}

bool AskForStacks(int pid) {
  return access(PathOf(pid).c_str(), F_OK) == 0 && HandlesTheSignal(pid, geteuid()) &&
         kill(pid, SIGUSR2) == 0;
}

std::unique_ptr<StackPage> ReadPageOf(int pid) {
  const int fd = open(PathOf(pid).c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return nullptr;
  auto page = std::make_unique<StackPage>();
  const ssize_t got = pread(fd, page.get(), sizeof(StackPage), 0);
  close(fd);
  const bool is_whole = got == static_cast<ssize_t>(sizeof(StackPage)) && page->magic == kMagic;
  return is_whole ? std::move(page) : nullptr;
}

UsedParts TakeUsedParts(const StackPage& page) {
  const auto* const bytes = reinterpret_cast<const char*>(&page);
  const size_t modules = std::min(page.num_modules.load(), kMaxModules);
  const size_t threads = std::min(page.num_threads.load(), kMaxThreads);
  return {std::string(bytes, kModules + modules * sizeof(Module)),
          std::string(bytes + kThreads, threads * sizeof(ThreadStack))};
}

std::string PutTogether(const UsedParts& parts, StackPage* page) {
  auto* const bytes = reinterpret_cast<char*>(page);
  if (parts.modules.size() < kModules || parts.modules.size() > kThreads ||
      parts.threads.size() > sizeof(StackPage) - kThreads) {
    return "got " + std::to_string(parts.modules.size()) + " and " +
           std::to_string(parts.threads.size()) + " bytes, which are no page of stacks";
  }
  std::memcpy(bytes, parts.modules.data(), parts.modules.size());
  std::memcpy(bytes + kThreads, parts.threads.data(), parts.threads.size());
  if (page->magic != kMagic) return "what was got is no page of stacks";
  if (page->version != kVersion) {
    return "the page is of version " + std::to_string(page->version) + ", this program reads " +
           std::to_string(kVersion) + ": use the one of that release";
  }
  return "";
}

}  // namespace epd::stacks
