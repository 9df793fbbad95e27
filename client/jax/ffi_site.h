// A call site as XLA holds it: created by the instantiate stage, given to every execution.
#pragma once

#include <xla/ffi/api/ffi.h>

#include <utility>

#include "client/jax/call_site.h"

namespace epd::jax {

struct SiteState : CallSite {
  explicit SiteState(CallSite site) : CallSite(std::move(site)) {}

  static ::xla::ffi::TypeId id;  // Given by XLA when it first asks about a handler.
};

}  // namespace epd::jax
