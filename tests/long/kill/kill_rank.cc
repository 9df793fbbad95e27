// A rank of the kill matrix: it does what its standard input says, a line at a time, and answers with one line each.
//
//   step     connects and joins where that is to be done, runs all five operations and compares: "exact", "wrong WHAT"
//            or "error CODE TEXT". After an error the next step tries the same group again, and after a second one, or
//            when its session is gone, it begins from the start, as a program would.
//   leave    leaves and disconnects: "left"
//   figures  what this process holds: "figures DESCRIPTORS MEMFDS MAPPED_SHARED_BYTES"
#include <dirent.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>

#include "tests/integration/client_c/harness/client_rank.h"

namespace epd::testing {
namespace {

constexpr int kFormMs = 10'000;

// In one line.
std::string Line(std::string text) {
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return text;
}

class KillRank {
 public:
  KillRank(std::string socket, const ExchangeCase& c, uint32_t rank)
      : socket_(std::move(socket)), case_(c), number_(rank), data_(MakeExchange(c)[rank]) {}
  ~KillRank() { End(); }

  std::string Step() {
    if (rank_ == nullptr) {
      if (const Result bad = Begin(); !bad.ok()) {
        End();
        return "error " + std::to_string(bad.code) + " " + Line(bad.message);
      }
    }
    const std::string problem = rank_->RunAndCompare(data_);
    const bool again = problem.empty() || (!failed_ && epd_check(client_, nullptr) == EPD_OK);
    failed_ = !problem.empty();
    if (!again) End();
    if (problem.empty()) return "exact";
    return (problem.starts_with("[epd:") ? "error - " : "wrong ") + Line(problem);
  }

  void End() {
    rank_.reset();
    if (client_ != nullptr) epd_disconnect(client_);
    client_ = nullptr;
    failed_ = false;
  }

 private:
  Result Begin() {
    if (const Result bad = Connect(socket_, &client_); !bad.ok()) return bad;
    rank_ = std::make_unique<ClientRank>(client_, case_, number_);
    return rank_->Join({.group = "kill", .form_ms = kFormMs});
  }

  const std::string socket_;
  const ExchangeCase case_;
  const uint32_t number_;
  const RankData data_;
  epd_client* client_ = nullptr;
  std::unique_ptr<ClientRank> rank_;
  bool failed_ = false;
};

std::string Figures() {
  int num_fds = 0;
  int num_memfds = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(folder)) {
    char target[256] = {};
    if (readlinkat(dirfd(folder), entry->d_name, target, sizeof target - 1) <= 0) continue;
    ++num_fds;
    if (std::string(target).starts_with("/memfd:")) ++num_memfds;
  }
  closedir(folder);
  uint64_t mapped = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/memfd:") == std::string::npos) continue;
    uint64_t begin = 0;
    uint64_t end = 0;
    const char* last = line.data() + line.size();
    const char* dash = std::from_chars(line.data(), last, begin, 16).ptr;
    std::from_chars(dash + 1, last, end, 16);
    mapped += end - begin;
  }
  return "figures " + std::to_string(num_fds) + " " + std::to_string(num_memfds) + " " +
         std::to_string(mapped);
}

int Main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: kill_rank SOCKET RANK RANKS HIDDEN\n");
    return 2;
  }
  ExchangeCase c;
  c.num_ranks = static_cast<uint32_t>(std::stoul(argv[3]));
  c.num_experts = 2 * c.num_ranks;
  c.hidden = static_cast<uint32_t>(std::stoul(argv[4]));
  KillRank rank(argv[1], c, static_cast<uint32_t>(std::stoul(argv[2])));
  for (std::string said; std::getline(std::cin, said);) {
    std::string answer = "unknown " + said;
    if (said == "step") answer = rank.Step();
    if (said == "figures") answer = Figures();
    if (said == "leave") {
      rank.End();
      answer = "left";
    }
    std::cout << answer << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace epd::testing

int main(int argc, char** argv) { return epd::testing::Main(argc, argv); }
