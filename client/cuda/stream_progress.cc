#include "client/cuda/stream_progress.h"

#include <atomic>
#include <cstddef>
#include <utility>

namespace epd::client {
namespace {

uint32_t Read(uint32_t& word) {
  return std::atomic_ref<uint32_t>(word).load(std::memory_order_acquire);
}

cuda::BatchedOperation Write(cuda::DevicePointer address, uint32_t value) {
  cuda::BatchedOperation operation = {};
  operation.value.operation = cuda::kWriteValue32;
  operation.value.address = address;
  operation.value.value = value;
  operation.value.flags = cuda::kWriteDefault;
  return operation;
}

}  // namespace

void SiteProgress::Clear() const { *words_ = {}; }

cuda::BatchedOperation SiteProgress::SetReplaying(bool replaying) const {
  return Write(on_device_ + offsetof(Words, replaying), replaying ? 1 : 0);
}

cuda::BatchedOperation SiteProgress::SetEnded(uint32_t number) const {
  return Write(on_device_ + offsetof(Words, ended), number);
}

bool SiteProgress::replaying() const { return Read(words_->replaying) != 0; }

uint32_t SiteProgress::ended() const { return Read(words_->ended); }

Status StreamProgress::Make(const cuda::DriverTable& driver, uint32_t num_sites,
                            std::unique_ptr<StreamProgress>* out) {
  auto made = std::make_unique<StreamProgress>();
  const size_t bytes = num_sites * sizeof(SiteProgress::Words);
  if (Status s = HostPages::Make(driver, bytes, &made->pages_); !s.ok()) return s;
  *out = std::move(made);
  return {};
}

SiteProgress StreamProgress::Of(int site) const {
  auto* const words = reinterpret_cast<SiteProgress::Words*>(pages_->data());
  const auto at = static_cast<size_t>(site);
  return {words + at, pages_->on_device() + at * sizeof(SiteProgress::Words)};
}

}  // namespace epd::client
