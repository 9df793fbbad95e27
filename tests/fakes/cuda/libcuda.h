// The one fake driver of a process that has loaded the fake libcuda.so.1.
#pragma once

#include "tests/fakes/cuda/fake_driver.h"

namespace epd::cuda {

// Made at the first call, as EPD_FAKE_CUDA says.
FakeDriver& FakeOfLibrary();

}  // namespace epd::cuda
