#include "client/cli/process_stacks.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "client/c/unique_fd.h"
#include "client/cli/symbol_table.h"
#include "proto/stacks/page_file.h"
#include "proto/stacks/page_reader.h"
#include "proto/stacks/stack_page.h"

namespace epd::cli {
namespace {

using stacks::StackPage;

constexpr size_t kMaxPages = 512;
constexpr absl::Duration kLook = absl::Milliseconds(10);

// One process's page, copied: what is mapped could be cut off by its owner.
struct Asked {
  std::string path;
  client::UniqueFd file;
  client::UniqueFd process;  // None: it has ended.
  std::unique_ptr<StackPage> page = std::make_unique<StackPage>();
  uint32_t round_before = 0;
  std::string problem;
};

std::string TextOf(const char* text, size_t max) {
  std::string out(text, strnlen(text, max));
  for (char& c : out) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  return out;
}

bool ReadPage(Asked& asked) {
  const ssize_t got = pread(asked.file.get(), asked.page.get(), sizeof(StackPage), 0);
  return got == static_cast<ssize_t>(sizeof(StackPage)) && asked.page->magic == stacks::kMagic;
}

// Whose page it is says the file system, not the page.
std::optional<Asked> OpenPage(const std::string& path, uid_t owner) {
  Asked asked;
  asked.path = path;
  asked.file = client::UniqueFd(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat facts = {};
  if (!asked.file.valid() || fstat(asked.file.get(), &facts) != 0 || !S_ISREG(facts.st_mode) ||
      facts.st_uid != owner || !ReadPage(asked))
    return std::nullopt;
  StackPage& page = *asked.page;
  if (page.uid != owner) return std::nullopt;
  if (page.version != stacks::kVersion) {
    asked.problem = absl::StrCat("the page is of version ", page.version, ", this epctl reads ",
                                 stacks::kVersion, ": use the epctl of that release");
  }
  asked.round_before = page.round.load();
  return asked;
}

void Ask(Asked& asked) {
  const int pid = asked.page->pid;
  client::UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!process.valid() || stacks::StartTicksOf(std::to_string(pid)) != asked.page->start_ticks)
    return;  // Ended; who has the pid now is somebody else.
  asked.process = std::move(process);
  // A page may name any process.
  if (!stacks::HandlesTheSignal(pid, asked.page->uid)) {
    asked.problem = "its page does not belong to it, or it handles SIGUSR2 no more";
  } else if (syscall(SYS_pidfd_send_signal, asked.process.get(), SIGUSR2, nullptr, 0) != 0) {
    asked.problem = absl::StrCat("cannot be asked: ", std::strerror(errno));
  }
}

bool IsAnswered(Asked& asked, absl::Time since) {
  if (!asked.process.valid() || !asked.problem.empty()) return true;
  if (!ReadPage(asked)) return false;
  const bool is_new = asked.page->round.load() != asked.round_before ||
                      absl::FromUnixNanos(asked.page->asked_unix_ns.load()) > since;
  // Once more: the modules stand before the threads in the file, and may have been written between the two.
  return is_new && stacks::IsWhole(*asked.page) && ReadPage(asked);
}

// Symbols of the files that frames lie in, each read once.
class Symbols {
 public:
  // Null, and why: no names.
  const SymbolTable* Of(const std::string& path, const std::string& build_id,
                        std::string* problem) {
    auto found = tables_.find({path, build_id});
    if (found == tables_.end()) {
      found = tables_.emplace(std::pair(path, build_id), SymbolTable::Read(path, build_id)).first;
    }
    if (found->second.ok()) return &*found->second;
    *problem = std::string(found->second.status().message());
    return nullptr;
  }

 private:
  std::map<std::pair<std::string, std::string>, absl::StatusOr<SymbolTable>> tables_;
};

class Resolver {
 public:
  Resolver(const StackPage& page, Symbols& symbols, SupportArchive::Stacks& out)
      : page_(page), symbols_(symbols), out_(out) {}

  void Add(uint64_t address, bool is_return, SupportArchive::Stacks::Frame& frame) {
    const uint32_t count = std::min(page_.num_modules.load(), stacks::kMaxModules);
    uint32_t i = 0;
    while (i < count && !Covers(page_.modules[i], address)) ++i;
    if (i == count) return frame.set_address(absl::StrCat("0x", absl::Hex(address)));
    const stacks::Module& module = page_.modules[i];
    const uint64_t in_file = address - module.bias;
    frame.set_address(absl::StrCat("0x", absl::Hex(in_file)));
    const auto& [place, table] = Known(i, module);
    frame.set_module(place);
    // A call that returns nowhere may be its function's last instruction.
    if (table != nullptr) frame.set_function(table->NameOf(is_return ? in_file - 1 : in_file));
  }

 private:
  struct Named {
    uint32_t place = 0;
    const SymbolTable* table = nullptr;
  };

  static bool Covers(const stacks::Module& module, uint64_t address) {
    return module.written.load() == 1 && address >= module.begin && address < module.end;
  }

  const Named& Known(uint32_t i, const stacks::Module& module) {
    const auto [known, is_new] = known_.try_emplace(i);
    if (!is_new) return known->second;
    SupportArchive::Stacks::Module& named = *out_.add_modules();
    known->second.place = static_cast<uint32_t>(out_.modules_size());
    const std::string own = TextOf(module.path, stacks::kPathBytes);
    named.set_path(own.empty() ? TextOf(page_.program, stacks::kPathBytes) : own);
    const std::string build_id(reinterpret_cast<const char*>(module.build_id),
                               std::min(module.build_id_bytes, stacks::kMaxBuildIdBytes));
    named.set_build_id(absl::BytesToHexString(build_id));
    std::string problem;
    known->second.table = symbols_.Of(named.path(), build_id, &problem);
    named.set_problem(problem);
    return known->second;
  }

  const StackPage& page_;
  Symbols& symbols_;
  SupportArchive::Stacks& out_;
  std::map<uint32_t, Named> known_;
};

void AddThreads(const StackPage& page, Symbols& symbols, SupportArchive::Stacks& out) {
  Resolver resolver(page, symbols, out);
  const uint32_t round = page.round.load();
  const uint32_t count = std::min(page.num_threads.load(), stacks::kMaxThreads);
  for (uint32_t i = 0; i < count; ++i) {
    const stacks::ThreadStack& stack = page.threads[i];
    SupportArchive::Stacks::Thread& thread = *out.add_threads();
    thread.set_tid(stack.tid.load());
    if (stack.written.load() != round) {
      thread.set_problem("has not written: it has ended, blocks SIGUSR2, or the kernel holds it");
      continue;
    }
    thread.set_name(TextOf(stack.name, stacks::kThreadNameBytes));
    thread.set_cut((stack.flags & stacks::kIsCut) != 0);
    thread.set_scanned((stack.flags & stacks::kIsScanned) != 0);
    for (uint32_t f = 0; f < std::min(stack.num_frames, stacks::kMaxFrames); ++f)
      resolver.Add(stack.frames[f], f > 0, *thread.add_frames());
  }
  out.set_num_threads_left_out(page.num_left_out.load());
}

std::string WhyNot(const Asked& asked, bool is_answered) {
  if (!asked.problem.empty() || is_answered) return asked.problem;
  const std::string state = stacks::StatusOf(asked.page->pid, "State");
  return absl::StrCat("it has not written all stacks in time",
                      state.empty() ? "" : absl::StrCat("; its state is ", state));
}

// What the page says, but for whether its process lives.
void AddPage(const StackPage& page, Symbols& symbols, SupportArchive::Stacks& out) {
  out.set_pid(page.pid);
  out.set_program(TextOf(page.program, stacks::kPathBytes));
  out.set_uid(page.uid);
  if (page.version != stacks::kVersion || page.asked_unix_ns.load() == 0) return;
  out.set_written_at(absl::FormatTime(
      absl::RFC3339_full, absl::FromUnixNanos(page.asked_unix_ns.load()), absl::UTCTimeZone()));
  AddThreads(page, symbols, out);
}

// False: not worth a word, for it has ended and never wrote.
bool AddProcess(const Asked& asked, bool is_answered, Symbols& symbols, SupportArchive& archive) {
  const StackPage& page = *asked.page;
  const bool has_ended = !asked.process.valid() && asked.problem.empty();
  if (has_ended && page.asked_unix_ns.load() == 0) return false;
  SupportArchive::Stacks& out = *archive.add_stacks();
  out.set_ended(has_ended);
  out.set_problem(WhyNot(asked, is_answered));
  AddPage(page, symbols, out);
  SupportArchive::Part& part = *archive.add_parts();
  part.set_what(absl::StrCat("stacks of ", page.pid, " (",
                             std::filesystem::path(out.program()).filename().string(), ")"));
  part.set_ok(out.problem().empty());
  part.set_problem(out.problem());
  return true;
}

void OpenPagesOf(const std::string& folder, std::vector<Asked>& pages, SupportArchive& archive) {
  struct stat facts = {};
  if (lstat(folder.c_str(), &facts) != 0 || !S_ISDIR(facts.st_mode)) return;
  std::error_code problem;
  for (std::filesystem::directory_iterator it(folder, problem), end;
       !problem && it != end && pages.size() < kMaxPages; it.increment(problem)) {
    if (absl::StartsWith(it->path().filename().string(), ".")) continue;  // Not shown yet.
    if (auto asked = OpenPage(it->path().string(), facts.st_uid))
      pages.push_back(*std::move(asked));
  }
  if (!problem) return;
  SupportArchive::Part& part = *archive.add_parts();
  part.set_what(folder);
  part.set_problem(problem.message());
}

}  // namespace

std::vector<std::string> StackFolders() {
  const std::string own = absl::StrCat(stacks::kFolderPrefix, geteuid());
  if (geteuid() != 0) return {own};
  const std::filesystem::path prefix = stacks::kFolderPrefix;
  std::vector<std::string> all;
  std::error_code problem;
  for (std::filesystem::directory_iterator it(prefix.parent_path(), problem), end;
       !problem && it != end; it.increment(problem)) {
    const std::string name = it->path().filename().string();
    uint32_t uid = 0;
    absl::string_view number = name;
    if (!absl::ConsumePrefix(&number, prefix.filename().string())) continue;
    struct stat facts = {};
    if (absl::SimpleAtoi(number, &uid) && lstat(it->path().c_str(), &facts) == 0 &&
        facts.st_uid == uid)
      all.push_back(it->path().string());
  }
  std::sort(all.begin(), all.end());
  return all;
}

void AddStacks(const std::vector<std::string>& folders, absl::Duration patience,
               SupportArchive& archive) {
  std::vector<Asked> pages;
  for (const std::string& folder : folders) OpenPagesOf(folder, pages, archive);
  const absl::Time begin = absl::Now();
  for (Asked& asked : pages) {
    if (asked.problem.empty()) Ask(asked);
  }
  std::vector<bool> answered(pages.size());
  for (bool all = false; !all && absl::Now() - begin < patience;) {
    all = true;
    for (size_t i = 0; i < pages.size(); ++i) {
      answered[i] = answered[i] || IsAnswered(pages[i], begin);
      all = all && answered[i];
    }
    if (!all) absl::SleepFor(kLook);
  }
  Symbols symbols;
  for (size_t i = 0; i < pages.size(); ++i) AddProcess(pages[i], answered[i], symbols, archive);
}

void AddWrittenStacks(const epd::v1::NodeExamination& said, SupportArchive::Node& out) {
  Symbols symbols;
  for (const epd::v1::NodeExamination::Stacks& one : said.stacks()) {
    SupportArchive::Stacks& added = *out.add_stacks();
    const auto page = std::make_unique<StackPage>();
    const std::string problem = stacks::PutTogether({one.modules(), one.threads()}, page.get());
    added.set_problem(problem);
    if (problem.empty()) AddPage(*page, symbols, added);
  }
}

}  // namespace epd::cli
