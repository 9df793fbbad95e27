#include "daemon/metrics/figures_cache.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "daemon/node/loop/event_loop.h"

namespace epd {

struct FiguresCache::State {
  absl::Mutex mutex;
  std::shared_ptr<const v1::GetFiguresResponse> figures ABSL_GUARDED_BY(mutex);
  absl::Time taken ABSL_GUARDED_BY(mutex) = absl::InfinitePast();
  bool asked ABSL_GUARDED_BY(mutex) = false;
};

FiguresCache::FiguresCache(Ask ask, Limits limits)
    : ask_(std::move(ask)), limits_(limits), state_(std::make_shared<State>()) {}

FiguresCache::Answer FiguresCache::Get() {
  State& state = *state_;
  bool ask = false;
  {
    const absl::MutexLock lock(&state.mutex);
    const absl::Duration age = MonotonicNow() - state.taken;
    if (age < limits_.fresh) return {state.figures, age, false};
    ask = !std::exchange(state.asked, true);
  }
  const bool refused = ask && !ask_([kept = state_](v1::GetFiguresResponse figures) {
                         const absl::MutexLock lock(&kept->mutex);
                         kept->figures =
                             std::make_shared<const v1::GetFiguresResponse>(std::move(figures));
                         kept->taken = MonotonicNow();
                         kept->asked = false;
                       });
  const absl::MutexLock lock(&state.mutex);
  if (refused) state.asked = false;
  const auto answered = [](State* s) {
    s->mutex.AssertReaderHeld();
    return !s->asked;
  };
  const bool in_time =
      state.mutex.AwaitWithTimeout(absl::Condition(+answered, &state), limits_.patience);
  return {state.figures, MonotonicNow() - state.taken, refused || !in_time};
}

}  // namespace epd
