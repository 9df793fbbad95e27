// What rows cost that go from process to process: copied into shared memory and out of it, as epd does, or read by
// process_vm_readv out of the sender's own memory, in one piece from each peer or row by row. Four processes with 4 MiB each.
//
//   bazel build //tests/bench:peer_reads && bazel-bin/tests/bench/peer_reads
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tests/bench/barrier.h"

namespace {

constexpr int kRanks = 4;
constexpr size_t kPartBytes = 1 << 20;  // From each rank to each.
constexpr size_t kRowBytes = 4096;
constexpr size_t kRowsACall = 64;
constexpr int kRounds = 5;
constexpr int kIterations = 60;

struct Shared {
  struct {
    uint32_t num_ranks = kRanks, num_arrived = 0, round = 0;  // As barrier.h has it.
  } barrier;
  pid_t pids[kRanks] = {};
  char* operands[kRanks] = {};
  char stages[kRanks][kRanks * kPartBytes];
};

class Rank {
 public:
  Rank(int rank, Shared* shared, bench_barrier* barrier)
      : rank_(rank), shared_(shared), barrier_(barrier) {
    shared->pids[rank] = getpid();
    shared->operands[rank] = operand_.data();
  }

  void TwoCopies() {
    for (int to = 0; to < kRanks; ++to) {
      if (to == rank_) continue;
      std::memcpy(Part(shared_->stages[rank_], to), Part(operand_.data(), to), kPartBytes);
    }
    bench_barrier_wait(barrier_);
    Land([&](int from, char* into) {
      std::memcpy(into, Part(shared_->stages[from], rank_), kPartBytes);
    });
  }

  void Reads(size_t piece) {
    bench_barrier_wait(barrier_);
    Land([&](int from, char* into) { Read(from, into, piece); });
  }

  // Milliseconds of one, among all ranks.
  double Time(const std::function<void()>& run) {
    using Clock = std::chrono::steady_clock;
    run();
    bench_barrier_wait(barrier_);
    const auto begin = Clock::now();
    for (int i = 0; i < kIterations; ++i) {
      run();
      bench_barrier_wait(barrier_);
    }
    return std::chrono::duration<double, std::milli>(Clock::now() - begin).count() / kIterations;
  }

 private:
  static char* Part(char* of, int number) { return of + static_cast<size_t>(number) * kPartBytes; }

  void Land(const std::function<void(int, char*)>& land) {
    for (int from = 0; from < kRanks; ++from) {
      char* const into = Part(result_.data(), from);
      if (from == rank_) {
        std::memcpy(into, Part(operand_.data(), rank_), kPartBytes);
      } else {
        land(from, into);
      }
    }
  }

  void Read(int from, char* into, size_t piece) {
    char* const theirs = Part(shared_->operands[from], rank_);
    const size_t step = std::min(kPartBytes, piece * kRowsACall);
    std::array<iovec, kRowsACall> here = {};
    std::array<iovec, kRowsACall> there = {};
    for (size_t done = 0; done < kPartBytes; done += step) {
      size_t pieces = 0;
      for (size_t at = done; at < done + step; at += piece, ++pieces) {
        here[pieces] = {into + at, piece};
        there[pieces] = {theirs + at, piece};
      }
      const ssize_t got =
          process_vm_readv(shared_->pids[from], here.data(), pieces, there.data(), pieces, 0);
      if (got == static_cast<ssize_t>(step)) continue;
      std::fprintf(stderr, "peer_reads: process_vm_readv: %s\n", std::strerror(errno));
      std::_Exit(1);
    }
  }

  int rank_;
  Shared* shared_;
  bench_barrier* barrier_;
  std::vector<char> operand_ = std::vector<char>(kRanks * kPartBytes, 1);
  std::vector<char> result_ = std::vector<char>(kRanks * kPartBytes, 2);
};

void Serve(int number, Shared* shared, bench_barrier* barrier) {
  Rank rank(number, shared, barrier);
  bench_barrier_wait(barrier);
  const struct {
    const char* name;
    std::function<void()> run;
  } ways[] = {
      {"two copies, through shared memory", [&] { rank.TwoCopies(); }},
      {"read from the peer, 1 MiB at once", [&] { rank.Reads(kPartBytes); }},
      {"read from the peer, rows of 4 KiB", [&] { rank.Reads(kRowBytes); }},
  };
  std::vector<std::vector<double>> times(std::size(ways));
  for (int round = 0; round < kRounds; ++round) {
    for (size_t way = 0; way < std::size(ways); ++way)
      times[way].push_back(rank.Time(ways[way].run));
  }
  if (number != 0) return;
  for (size_t way = 0; way < std::size(ways); ++way) {
    std::ranges::sort(times[way]);
    std::printf("%s: %.2f ms, %.2f to %.2f in %d rounds\n", ways[way].name, times[way][kRounds / 2],
                times[way].front(), times[way].back(), kRounds);
  }
}

}  // namespace

int main() {
  std::string path = "/tmp/peer_reads.XXXXXX";
  const int fd = mkstemp(path.data());
  if (fd < 0 || ftruncate(fd, sizeof(Shared)) != 0) return 1;
  void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  bench_barrier* const barrier = bench_barrier_open(path.c_str());
  unlink(path.c_str());
  if (memory == MAP_FAILED || barrier == nullptr) return 1;
  auto* const shared = static_cast<Shared*>(memory);
  shared->barrier.num_ranks = kRanks;
  for (int rank = 0; rank < kRanks; ++rank) {
    if (fork() != 0) continue;
    Serve(rank, shared, barrier);
    std::fflush(stdout);
    std::_Exit(0);
  }
  int failed = 0;
  for (int status = 0; wait(&status) > 0;) failed |= status;
  return failed == 0 ? 0 : 1;
}
