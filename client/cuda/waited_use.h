// A use of a site that is waited for: while a node's daemon stops in order its group may refuse it.
#pragma once

#include "client/c/status.h"
#include "client/cuda/stream_site.h"
#include "kernels/cuda/driver/driver_table.h"

namespace epd::client {

// Waits until the stream has nothing left to do. Needs the device's context current.
//   CANCELLED            a signal came
//   FAILED_PRECONDITION  the driver says that something in the stream has failed
Status AwaitStream(const cuda::DriverTable& driver, cuda::Stream stream);

// The same for a use of `site`, which was put last, and whose slots the worker does not look at by itself.
Status AwaitUse(const cuda::DriverTable& driver, cuda::Stream stream, const StreamSite& site);

// Whether the stream is being captured: what is put into it runs later, if ever.
bool IsBeingCaptured(const cuda::DriverTable& driver, cuda::Stream stream);

}  // namespace epd::client
