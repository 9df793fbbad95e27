// One step on the CPU; what host_run.h does for the launches of the image.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <type_traits>
#include <vector>

#include "kernels/cuda/bulk_mover.h"
#include "kernels/cuda/thread_position.h"
#include "tests/fakes/cuda/host_run.h"

namespace epd::cuda {

// Positions 0 .. n-1 in the wanted order.
inline std::vector<std::int64_t> HostPositions(std::int64_t n, HostOrder order) {
  std::vector<std::int64_t> positions(static_cast<std::size_t>(n));
  std::iota(positions.begin(), positions.end(), 0);
  if (order == HostOrder::kBackward) std::reverse(positions.begin(), positions.end());
  if (order == HostOrder::kShuffled) {
    std::uint64_t state = 0x9e3779b97f4a7c15 + static_cast<std::uint64_t>(n);
    for (std::size_t i = positions.size(); i > 1; --i) {
      state = state * 6364136223846793005 + 1442695040888963407;
      std::swap(positions[i - 1], positions[(state >> 33) % i]);
    }
  }
  return positions;
}

template <typename Step, int kPhase>
void RunPhasesOnHost(const typename Step::Args& args, ThreadPosition thread,
                     const std::vector<std::int64_t>& threads, typename Step::Shared& shared) {
  for (const std::int64_t index : threads) {
    thread.index = static_cast<std::int32_t>(index);
    Step::template Run<kPhase>(args, thread, shared);
  }
  if constexpr (kPhase + 1 < Step::kPhases) {
    RunPhasesOnHost<Step, kPhase + 1>(args, thread, threads, shared);
  }
}

// Shared memory that was not written has no meaning; here it has an ugly one.
template <typename Shared>
std::unique_ptr<Shared> MakeHostShared() {
  auto shared = std::make_unique<Shared>();
  if constexpr (!std::is_empty_v<Shared>) std::memset(shared.get(), 0xee, sizeof(Shared));
  return shared;
}

// False if the launch's sizes are not the step's.
template <typename Step>
bool RunStepOnHost(const Launch& launch, HostOrder order) {
  typename Step::Args args;
  if (launch.args_bytes != sizeof(args) || launch.grid == 0 || launch.threads == 0 ||
      launch.threads > Step::kThreads || launch.threads % kWarpThreads != 0) {
    return false;
  }
  std::memcpy(static_cast<void*>(&args), launch.args, sizeof(args));
  const auto threads = HostPositions(launch.threads, order);
  for (const std::int64_t block : HostPositions(launch.grid, order)) {
    const auto shared = MakeHostShared<typename Step::Shared>();
    ThreadPosition thread{block, 0, static_cast<std::int32_t>(launch.threads)};
    for (const std::int64_t index : threads) {
      thread.index = static_cast<std::int32_t>(index);
      BeginShared(*shared, thread);
    }
    for (; thread.unit < Step::Units(args); thread.unit += launch.grid) {
      RunPhasesOnHost<Step, 0>(args, thread, threads, *shared);
    }
  }
  return true;
}

}  // namespace epd::cuda
