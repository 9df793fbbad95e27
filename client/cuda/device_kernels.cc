#include "client/cuda/device_kernels.h"

#include <chrono>
#include <utility>

#include "client/c/made_once.h"

namespace epd::client {
namespace {

constexpr std::chrono::seconds kLoadDeadline{60};

using Key = std::pair<const cuda::DriverTable*, int>;

// Leaked: a stream's thread may outlive main().
MadeOnce<Key, std::weak_ptr<const cuda::KernelModule>>& Loaded() {
  static auto* const loaded = new MadeOnce<Key, std::weak_ptr<const cuda::KernelModule>>;
  return *loaded;
}

}  // namespace

Status LoadKernels(const cuda::DriverTable& driver, const void* image, int device,
                   std::shared_ptr<const cuda::KernelModule>* kernels) {
  std::weak_ptr<const cuda::KernelModule> unused;
  return Loaded().Get(
      {&driver, device}, std::chrono::steady_clock::now() + kLoadDeadline,
      [kernels](const auto& there) { return (*kernels = there.lock()) != nullptr; },
      [&](std::weak_ptr<const cuda::KernelModule>* made) -> Status {
        cuda::LoadedKernels loaded = cuda::KernelModule::Load(driver, image);
        if (!loaded.problem.empty()) return {Code::kFailedPrecondition, loaded.problem};
        *kernels = std::move(loaded.module);
        *made = *kernels;
        return {};
      },
      &unused);
}

}  // namespace epd::client
