#include "daemon/rpc/cluster/clock_probe.h"

#include "absl/time/clock.h"
#include "daemon/rpc/answer.h"

namespace epd {
namespace {

// Several, for the first ones wait for threads to wake; few, for they are asked for with every page of a trace.
constexpr int kQuestions = 4;
constexpr absl::Duration kPatience = absl::Seconds(1);

struct ClockCall {
  grpc::ClientContext context;
  v1::ReadClockRequest request;
  v1::ReadClockResponse response;
  ClockOffset::Sample sample;
};

}  // namespace

int64_t MonotonicNanos() { return absl::ToUnixNanos(ClockNow()); }

void ClockProbe::Ask() {
  if (asking_) return;
  asking_ = true;
  AskOnce(kQuestions);
}

void ClockProbe::AskOnce(int num_left) {
  if (num_left == 0) {
    asking_ = false;
    return;
  }
  const auto call = std::make_shared<ClockCall>();
  call->context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
  call->sample.asked = MonotonicNanos();
  link_.stub().async()->ReadClock(&call->context, &call->request, &call->response,
                                  [this, call, num_left, weak = std::weak_ptr<int>(alive_),
                                   &loop = loop_](const grpc::Status& status) {
                                    call->sample.answered = MonotonicNanos();
                                    loop.Post([this, call, num_left, weak, ok = status.ok()] {
                                      if (weak.expired()) return;
                                      if (ok) {
                                        call->sample.received = call->response.received_ns();
                                        call->sample.sent = call->response.sent_ns();
                                        offset_.Add(call->sample);
                                        reference_epoch_ns_ =
                                            call->response.unix_ns() - call->response.sent_ns();
                                      }
                                      AskOnce(ok ? num_left - 1 : 0);
                                    });
                                  });
}

std::optional<ClockOffset::Estimate> ClockProbe::Best() const {
  return offset_.Best(MonotonicNanos());
}

}  // namespace epd
