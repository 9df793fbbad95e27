#include "daemon/worker/shell/thread_slice.h"

#include <linux/sched.h>
#include <linux/sched/types.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace epd {
namespace {

// The least that the kernel takes.
constexpr unsigned kShortTurnNs = 100'000;
// A third of the weight that it had.
constexpr int kNicer = 5;

template <typename Change>
void ChangeOwn(const Change& change) {
  sched_attr attributes = {};
  constexpr unsigned kNoFlags = 0;
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, kNoFlags) != 0) return;
  if (attributes.sched_policy != SCHED_NORMAL) return;  // Somebody knows better.
  change(attributes);
  syscall(SYS_sched_setattr, 0, &attributes, kNoFlags);
}

}  // namespace

void TakeShortSlices() {
  ChangeOwn([](sched_attr& attributes) { attributes.sched_runtime = kShortTurnNs; });
}

void WakeInTime() {
  constexpr unsigned long kSlackNs = 1000;
  prctl(PR_SET_TIMERSLACK, kSlackNs, 0, 0, 0);
}

void YieldToOthers() {
  ChangeOwn([](sched_attr& attributes) {
    attributes.sched_policy = SCHED_BATCH;
    attributes.sched_nice += kNicer;
  });
}

}  // namespace epd
