// Plans of the group that was there before a node's daemon stopped in order, in the group that goes on for it.
#pragma once

#include <memory>
#include <set>

#include "client/c/mutex.h"
#include "client/c/status.h"
#include "client/cuda/host_pages.h"
#include "kernels/cuda/driver/driver_table.h"
#include "kernels/routing_plan.h"

namespace epd::client {

// A plan names its group and epoch, and workers take plans of their own group alone. One that was made before the stop is
// renamed, in its buffer, at its first use after it; what a plan says stays as it is. Thread-safe. Needs the device's context
// current; the driver outlives it.
class CarriedPlans {
 public:
  // `max_bytes`: of a plan. Registers pages: nothing may wait in a stream.
  static Status Make(const cuda::DriverTable& driver, const PlanIds& from, const PlanIds& to,
                     size_t max_bytes, std::unique_ptr<CarriedPlans>* out);

  // A prepare of the new group writes its plan there.
  void NoteMade(const void* plan);
  // Renames the plan there if it is one of the old group. At the first use of a buffer that no prepare of the new one has
  // written it waits for what the stream has in it.
  //   CANCELLED            a signal came while it waited
  //   FAILED_PRECONDITION  a call of the driver failed
  Status Rename(const RoutingSpec& spec, void* plan, cuda::Stream stream);

 private:
  CarriedPlans(const cuda::DriverTable& driver, const PlanIds& from, const PlanIds& to)
      : driver_(driver), from_(from), to_(to) {}
  bool IsOld(const void* plan);
  // Waits until the pages are this caller's, for that plan. False: somebody has renamed it meanwhile.
  bool TakePages(const void* plan);
  Status RenameAt(const RoutingSpec& spec, cuda::DevicePointer plan, cuda::Stream stream);
  Status Copy(cuda::DevicePointer to, cuda::DevicePointer from, size_t bytes, cuda::Stream stream);

  const cuda::DriverTable& driver_;
  const PlanIds from_;
  const PlanIds to_;
  std::unique_ptr<HostPages> pages_;  // Of one renaming at a time.
  Mutex mutex_;
  CondVar changed_;
  bool pages_taken_ EPD_GUARDED_BY(mutex_) = false;
  std::set<const void*> known_ EPD_GUARDED_BY(mutex_);  // Buffers whose plan is of the new group.
};

}  // namespace epd::client
