#include "tests/bench/barrier.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

struct bench_barrier {
  const uint32_t num_ranks;
  std::atomic<uint32_t> num_arrived;
  std::atomic<uint32_t> round;
};
static_assert(sizeof(bench_barrier) == 12);

bench_barrier* bench_barrier_open(const char* path) {
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  void* const at = mmap(nullptr, sizeof(bench_barrier), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  return at == MAP_FAILED ? nullptr : static_cast<bench_barrier*>(at);
}

void bench_barrier_wait(bench_barrier* barrier) {
  const uint32_t round = barrier->round.load();
  if (barrier->num_arrived.fetch_add(1) + 1 == barrier->num_ranks) {
    barrier->num_arrived.store(0);
    barrier->round.store(round + 1);
    syscall(SYS_futex, &barrier->round, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
    return;
  }
  while (barrier->round.load() == round) {
    syscall(SYS_futex, &barrier->round, FUTEX_WAIT, round, nullptr, nullptr, 0);
  }
}
