#include "daemon/backend/cuda/device/device_work.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace epd::cuda {

absl::StatusOr<DeviceWork> DeviceWork::Create(const DriverTable& driver,
                                              const DeviceStreams& streams,
                                              const Options& options) {
  DeviceWork work(driver, streams, options);
  work.open_.resize(static_cast<size_t>(streams.size()));
  for (int i = 0; i < options.max_open; ++i) {
    Event event = nullptr;
    const Result code = driver.event_create(&event, kEventDisableTiming);
    if (code != kSuccess) {
      return absl::ResourceExhaustedError(Describe(driver, "cuEventCreate", code));
    }
    work.idle_.push_back(event);
  }
  return work;
}

DeviceWork::DeviceWork(DeviceWork&& other) noexcept
    : driver_(other.driver_),
      streams_(other.streams_),
      options_(other.options_),
      idle_(std::exchange(other.idle_, {})),
      open_(std::exchange(other.open_, {})),
      failed_(other.failed_) {}

// An event that was not reached may be destroyed; the driver frees it once it is.
DeviceWork::~DeviceWork() {
  for (const Event event : idle_) driver_.event_destroy(event);
  for (const std::deque<Open>& stream : open_) {
    for (const Open& open : stream) driver_.event_destroy(open.event);
  }
}

absl::Status DeviceWork::Fail(absl::Status why) {
  failed_ = why;
  return why;
}

int DeviceWork::num_open() const { return options_.max_open - static_cast<int>(idle_.size()); }

absl::Time DeviceWork::next_deadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const std::deque<Open>& stream : open_) {
    if (!stream.empty()) next = std::min(next, stream.front().deadline);
  }
  return next;
}

absl::Status DeviceWork::Start(WorkId id, int stream, const std::function<Result(Stream)>& put,
                               absl::Time now, absl::Duration more) {
  if (!failed_.ok()) return failed_;
  if (idle_.empty()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(options_.max_open, " operations are open on the device"));
  }
  const Stream where = streams_.at(stream);
  if (const Result code = put(where); code != kSuccess) {
    return Fail(absl::InternalError(Describe(driver_, "putting work into a stream", code)));
  }
  const Event event = idle_.back();
  if (const Result code = driver_.event_record(event, where); code != kSuccess) {
    return Fail(absl::InternalError(Describe(driver_, "cuEventRecord", code)));
  }
  idle_.pop_back();
  open_[static_cast<size_t>(stream)].push_back(
      {.id = id, .event = event, .deadline = now + options_.limit + more});
  return absl::OkStatus();
}

absl::StatusOr<std::vector<WorkId>> DeviceWork::Poll(absl::Time now) {
  if (!failed_.ok()) return failed_;
  std::vector<WorkId> complete;
  for (std::deque<Open>& stream : open_) {
    while (!stream.empty()) {
      const Open& oldest = stream.front();
      const Result code = driver_.event_query(oldest.event);
      if (code == kNotReady && now >= oldest.deadline) {
        return Fail(absl::DeadlineExceededError(
            absl::StrCat("operation ", oldest.id, " did not complete on the device within ",
                         absl::FormatDuration(options_.limit))));
      }
      if (code == kNotReady) break;
      if (code != kSuccess) {
        return Fail(absl::InternalError(
            absl::StrCat(Describe(driver_, "cuEventQuery", code), ": the device is lost")));
      }
      complete.push_back(oldest.id);
      idle_.push_back(oldest.event);
      stream.pop_front();
    }
  }
  return complete;
}

}  // namespace epd::cuda
