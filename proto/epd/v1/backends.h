// The backends that a group may ask for by name, and what everybody but the backend itself must know of each. A name of
// one is compared nowhere else but in daemon/backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "proto/epd/v1/limits.h"

namespace epd {

// The worker that every node has; those of GPUs are "cuda:0", "cuda:1", ...
inline constexpr char kCpuWorkerName[] = "cpu";

struct BackendTraits {
  const char* name;       // GroupSpec::backend.
  const char* served_by;  // daemon/backend's Backend::name(); empty: the worker's first one.
  // Staging is memory of GPUs, and workers of several nodes are members of a communicator.
  bool on_device = false;
  bool client_executor = true;  // Ranks may move their rows themselves.
  // For people: the library that moves all rows, is told of the group when that forms, and has one rank per worker,
  // of two workers at least. Empty: none.
  const char* library = "";
  std::uint32_t max_ranks = limits::kServedRanks;

  constexpr bool by_library() const { return *library != '\0'; }
  // Whether a group on `num_workers` workers can do without an id of a communicator.
  constexpr bool WorksAlone(std::size_t num_workers) const {
    return !on_device || (!by_library() && num_workers == 1);
  }
};

inline constexpr BackendTraits kBackends[] = {
    {.name = "auto", .served_by = ""},
    {.name = "cpu", .served_by = "cpu"},
    {.name = "cuda", .served_by = "cuda", .on_device = true, .max_ranks = limits::kDeviceRanks},
    {.name = "nccl_ep",
     .served_by = "cuda",
     .on_device = true,
     .client_executor = false,
     .library = "NCCL EP",
     .max_ranks = limits::kDeviceRanks},
};

// Null: there is no such backend.
constexpr const BackendTraits* FindBackend(std::string_view name) {
  for (const BackendTraits& one : kBackends) {
    if (name == one.name) return &one;
  }
  return nullptr;
}

// Whether a group's staging is memory of GPUs.
constexpr bool IsOnDevice(std::string_view backend) {
  const BackendTraits* const found = FindBackend(backend);
  return found != nullptr && found->on_device;
}

}  // namespace epd
