// A call site as XLA holds it: created by the instantiate stage, given to every execution.
#pragma once

#include <xla/ffi/api/ffi.h>

#include <memory>
#include <utility>

#include "client/jax/call_site.h"

namespace epd::program {
class DeviceSites;
}

namespace epd::jax {

struct SiteState : CallSite {
  explicit SiteState(CallSite site) : CallSite(std::move(site)) {}

  // Of calls on GPUs; made by the first of them. Goes with the executable.
  std::shared_ptr<program::DeviceSites> devices;

  static ::xla::ffi::TypeId id;  // Given by XLA when it first asks about a handler.
};

}  // namespace epd::jax
