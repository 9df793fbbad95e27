// How far another node's clock is from this one's, by questions and answers that carry both times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

namespace epd {

// Pure. Of the last kKept samples the one with the shortest round trip counts: what an answer waits somewhere, it waits on one of
// the two ways, and half of that is the error. Clocks of one kind drift by some 10 us a second at most, so samples become old.
class ClockOffset {
 public:
  // Nanoseconds. `asked` and `answered` by the own clock, the others by the other node's.
  struct Sample {
    int64_t asked = 0;
    int64_t received = 0;
    int64_t sent = 0;
    int64_t answered = 0;
  };
  struct Estimate {
    int64_t offset_ns = 0;      // To be added to the own times to have the other node's.
    int64_t round_trip_ns = 0;  // The error is at most half of it.
    size_t num_samples = 0;     // It was chosen from.
  };
  static constexpr size_t kKept = 16;
  static constexpr int64_t kOld = 60'000'000'000;

  // One whose times run backwards is left out.
  void Add(const Sample& sample);
  // From samples that were answered at most kOld before `now`; nothing: there are none.
  std::optional<Estimate> Best(int64_t now) const;

 private:
  std::deque<Sample> samples_;  // The newest last.
};

}  // namespace epd
