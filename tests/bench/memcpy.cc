// The machine's own speed: as many bytes as the exchange moves, copied by two threads. "warm"
// copies into memory that was written before, "fresh" into memory that the kernel has yet to give,
// as a large XLA output is. "rows" has the exchange's footprint: the tokens are copied to a stage, and
// from there once for each of their routes.
#include <gnu/libc-version.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "tests/bench/bench_rank.h"

namespace epd::bench {
namespace {

constexpr int kThreads = 2;
constexpr size_t kPage = 4096;

void* Map(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("mmap failed");
  return memory;
}

class Memcpy : public Contender {
 public:
  Memcpy() {
    for (int i = 0; i < kThreads; ++i) {
      threads_[i] = std::jthread([this, i] { Work(i); });
    }
  }
  ~Memcpy() override {
    bytes_ = 0;
    is_over_ = true;
    begin_.arrive_and_wait();
  }

  void Load(Problem problem) override {
    bytes_ = static_cast<size_t>(problem.num_ranks * problem.num_tokens * problem.top_k *
                                 problem.hidden) *
             sizeof(Row16);
    token_bytes_ = bytes_ / static_cast<size_t>(problem.top_k);
    stage_ = static_cast<char*>(Map(token_bytes_));
    from_ = static_cast<char*>(Map(bytes_));
    warm_ = static_cast<char*>(Map(bytes_));
    std::memset(from_, 1, bytes_);
    std::memset(warm_, 2, bytes_);
  }

  void Unload() override {
    munmap(stage_, token_bytes_);
    munmap(from_, bytes_);
    munmap(warm_, bytes_);
    if (fresh_ != nullptr) munmap(fresh_, bytes_);
    fresh_ = nullptr;
  }

  // New memory is asked for here, outside of what is timed; its pages come with the first write.
  void GetReady(const std::string& operation) override {
    if (operation != "fresh") return;
    if (fresh_ != nullptr) munmap(fresh_, bytes_);
    fresh_ = static_cast<char*>(Map(bytes_));
  }

  void Run(const std::string& operation) override {
    is_rows_ = operation == "rows";
    to_ = operation == "fresh" ? fresh_ : warm_;
    begin_.arrive_and_wait();
    end_.arrive_and_wait();
    result_ = to_;
  }

  std::span<const Row16> Result(const std::string&) override {
    return {reinterpret_cast<const Row16*>(result_), bytes_ / sizeof(Row16)};
  }

  std::string Versions() override { return "glibc=" + std::string(gnu_get_libc_version()); }

 private:
  void Work(int thread) {
    while (true) {
      begin_.arrive_and_wait();
      if (is_over_) return;
      // Halves that do not share a page.
      const size_t half = bytes_ / kThreads / kPage * kPage;
      const size_t offset = static_cast<size_t>(thread) * half;
      const size_t size = thread == kThreads - 1 ? bytes_ - offset : half;
      if (is_rows_) {
        CopyRows(thread, offset, size);
      } else {
        std::memcpy(to_ + offset, from_ + offset, size);
      }
      end_.arrive_and_wait();
    }
  }

  void CopyRows(int thread, size_t offset, size_t size) {
    const size_t own = token_bytes_ / kThreads;
    const size_t first = static_cast<size_t>(thread) * own;
    std::memcpy(stage_ + first, from_ + first, own);
    staged_.arrive_and_wait();
    for (size_t done = 0; done < size;) {
      const size_t now = std::min(size - done, token_bytes_);
      std::memcpy(to_ + offset + done, stage_, now);
      done += now;
    }
  }

  size_t bytes_ = 0;
  size_t token_bytes_ = 0;
  char* stage_ = nullptr;
  char* from_ = nullptr;
  char* warm_ = nullptr;
  char* fresh_ = nullptr;
  char* to_ = nullptr;
  const char* result_ = nullptr;
  bool is_over_ = false;
  bool is_rows_ = false;
  std::barrier<> staged_{kThreads};
  std::barrier<> begin_{kThreads + 1};
  std::barrier<> end_{kThreads + 1};
  std::array<std::jthread, kThreads> threads_;
};

}  // namespace
}  // namespace epd::bench

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  epd::bench::Memcpy contender;
  return epd::bench::ServeDriver(argv[1], /*rank=*/0, contender);
}
