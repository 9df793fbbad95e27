#include "daemon/rpc/cluster/clock_offset.h"

namespace epd {

void ClockOffset::Add(const Sample& sample) {
  const int64_t there = sample.sent - sample.received;
  if (there < 0 || sample.answered - sample.asked < there) return;
  samples_.push_back(sample);
  if (samples_.size() > kKept) samples_.pop_front();
}

std::optional<ClockOffset::Estimate> ClockOffset::Best(int64_t now) const {
  std::optional<Estimate> best;
  size_t num_samples = 0;
  for (const Sample& sample : samples_) {
    if (now - sample.answered > kOld) continue;
    ++num_samples;
    const int64_t round_trip = sample.answered - sample.asked - (sample.sent - sample.received);
    if (best.has_value() && best->round_trip_ns <= round_trip) continue;
    // The mean of both ways, without a sum that could overflow.
    const int64_t forth = sample.received - sample.asked;
    const int64_t back = sample.sent - sample.answered;
    best = Estimate{.offset_ns = back + (forth - back) / 2, .round_trip_ns = round_trip};
  }
  if (best.has_value()) best->num_samples = num_samples;
  return best;
}

}  // namespace epd
