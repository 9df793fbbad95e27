#include "client/cuda/open_stream_group.h"

#include "client/c/handles.h"
#include "kernels/cuda/device_image.h"

namespace epd::client {
namespace {

CudaDriver* Open() {
  auto* const driver = new CudaDriver;
  cuda::LoadedDriver loaded = cuda::LoadDriver();
  driver->problem = loaded.problem;
  driver->table = loaded.table;
  driver->image = cuda::KernelImage().data;
  if (!loaded.ok()) return driver;
  if (!loaded.table.has_stream_memory_operations()) {
    driver->problem = loaded.path + " has no stream memory operations";
  } else if (const cuda::Result code = loaded.table.init(0); code != cuda::kSuccess) {
    driver->problem = cuda::Describe(loaded.table, "cuInit", code);
  }
  return driver;
}

}  // namespace

const CudaDriver& ProcessDriver() {
  static const CudaDriver* const driver = Open();
  return *driver;
}

Status OpenStreamGroup(const StreamPlace& place, const CudaDriver& driver,
                       Clock::time_point deadline, std::shared_ptr<StreamGroup>* group) {
  const auto& [joined, rank, device] = place;
  if (!driver.problem.empty()) {
    return {Code::kFailedPrecondition, "this process cannot use its GPUs: " + driver.problem};
  }
  const std::shared_ptr<Session> session = joined.session;
  const std::shared_ptr<const Formation> formation = joined.group->current();
  if (formation == nullptr || rank >= formation->slots.size()) {
    return MakeStatus(Code::kInvalidArgument, "rank: got %u, which this group has not", rank);
  }
  const Status made = StreamGroup::Create({.slots = formation->slots[rank],
                                           .lost = [session] { return session->lost(); },
                                           .group = joined.group,
                                           .rank = rank,
                                           .device = device,
                                           .driver = &driver.table,
                                           .image = driver.image},
                                          deadline, group);
  if (!made.ok()) return made;
  // Nobody calls the C library for this session, whose watchdog starts with the first call.
  return session->BeforeCall();
}

}  // namespace epd::client
