#include "client/cuda/carried_plans.h"

#include <chrono>
#include <cstring>

#include "client/cuda/registered_slots.h"
#include "client/cuda/waited_use.h"
#include "kernels/plan_checksum.h"

namespace epd::client {
namespace {

constexpr std::chrono::milliseconds kLook{100};

}  // namespace

Status CarriedPlans::Make(const cuda::DriverTable& driver, const PlanIds& from, const PlanIds& to,
                          size_t max_bytes, std::unique_ptr<CarriedPlans>* out) {
  std::unique_ptr<CarriedPlans> made(new CarriedPlans(driver, from, to));
  if (Status s = HostPages::Make(driver, max_bytes, &made->pages_); !s.ok()) return s;
  *out = std::move(made);
  return {};
}

void CarriedPlans::NoteMade(const void* plan) {
  MutexLock lock(mutex_);
  known_.insert(plan);
}

Status CarriedPlans::Rename(const RoutingSpec& spec, void* plan, cuda::Stream stream) {
  if (!IsOld(plan)) return {};
  // Under no lock: what is in the stream may wait for others.
  if (Status s = AwaitStream(driver_, stream); !s.ok()) return s;
  if (!TakePages(plan)) return {};
  const Status renamed = RenameAt(spec, reinterpret_cast<cuda::DevicePointer>(plan), stream);
  MutexLock lock(mutex_);
  pages_taken_ = false;
  changed_.NotifyAll();
  if (renamed.ok()) known_.insert(plan);
  return renamed;
}

bool CarriedPlans::IsOld(const void* plan) {
  MutexLock lock(mutex_);
  return !known_.contains(plan);
}

bool CarriedPlans::TakePages(const void* plan) {
  MutexLock lock(mutex_);
  while (pages_taken_) changed_.WaitUntil(mutex_, std::chrono::steady_clock::now() + kLook);
  pages_taken_ = !known_.contains(plan);
  return pages_taken_;
}

// What is no plan of the old group stays as it is: the call says what is wrong with it.
Status CarriedPlans::RenameAt(const RoutingSpec& spec, cuda::DevicePointer plan,
                              cuda::Stream stream) {
  PlanHeader header = {};
  if (Status s = Copy(pages_->on_device(), plan, sizeof header, stream); !s.ok()) return s;
  std::memcpy(&header, pages_->data(), sizeof header);
  if (header.magic != kPlanMagic || header.group_id != from_.group_id ||
      header.epoch != from_.epoch || header.total_bytes != RoutingPlanBytes(spec) ||
      header.num_tokens > static_cast<uint64_t>(spec.max_tokens) ||
      header.num_routes > uint64_t{header.num_tokens} * static_cast<uint64_t>(spec.top_k)) {
    return {};
  }
  const size_t used = PlanUsedBytes(spec, header.num_tokens, header.num_routes);
  if (used > pages_->bytes()) return {};
  if (Status s = Copy(pages_->on_device(), plan, used, stream); !s.ok()) return s;
  if (PlanChecksum(pages_->data(), used) != header.checksum) return {};
  header.group_id = to_.group_id;
  header.epoch = to_.epoch;
  std::memcpy(pages_->data(), &header, sizeof header);
  header.checksum = PlanChecksum(pages_->data(), used);
  std::memcpy(pages_->data(), &header, sizeof header);
  return Copy(plan, pages_->on_device(), sizeof header, stream);
}

Status CarriedPlans::Copy(cuda::DevicePointer to, cuda::DevicePointer from, size_t bytes,
                          cuda::Stream stream) {
  const cuda::Result code = driver_.copy_async(to, from, bytes, stream);
  if (code != cuda::kSuccess) return Refused(driver_, "cuMemcpyAsync", code);
  return AwaitStream(driver_, stream);
}

}  // namespace epd::client
