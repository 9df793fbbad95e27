// The way from a joined group to its rank's streams on a GPU.
#pragma once

#include <memory>
#include <string>

#include "client/c/epd_client.h"
#include "client/cuda/stream_group.h"

namespace epd::client {

// The driver of this process, opened once.
struct CudaDriver {
  cuda::DriverTable table;
  const void* image = nullptr;
  std::string problem;  // "": calls can run on GPUs.
};
const CudaDriver& ProcessDriver();

struct StreamPlace {
  const epd_group& joined;
  uint32_t rank;
  int device;
};

// `driver` outlives the group and its thread. Errors as StreamGroup::Create; and FAILED_PRECONDITION where `driver` cannot be used.
Status OpenStreamGroup(const StreamPlace& place, const CudaDriver& driver,
                       Clock::time_point deadline, std::shared_ptr<StreamGroup>* group);

}  // namespace epd::client
