#include "client/jax/device_groups.h"

#include <cstdio>
#include <utility>

#include "client/c/handles.h"
#include "client/jax/epd_jax.h"
#include "client/jax/ffi_site.h"
#include "kernels/cuda/device_image.h"

namespace epd::jax {
namespace {

// Staging is mapped at once: the group is READY already.
constexpr std::chrono::seconds kMapDeadline{60};

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

Status FromClient(const client::Status& status, const std::string& group, std::uint32_t rank) {
  if (status.ok()) return {};
  const client::Status placed =
      client::AtPlace(status, {.group = group, .rank = rank, .phase = "stream"});
  return {static_cast<int>(placed.code), placed.message};
}

DeviceGroups& DeviceGroups::Shared() {
  static auto* const groups = new DeviceGroups;
  return *groups;
}

Status DeviceGroups::Find(const CallSite& site, int device,
                          std::shared_ptr<client::StreamGroup>* group) {
  {
    const client::MutexLock lock(mutex_);
    if (finder_ != nullptr) return finder_(site, device, group);
  }
  const CudaDriver& driver = ProcessDriver();
  if (!driver.problem.empty()) {
    return {kFailedPrecondition,
            "[epd:FAILED_PRECONDITION] group=" + site.config.alias +
                " phase=begin: this process cannot use its GPUs: " + driver.problem};
  }
  DevicePlace place;
  const Status found = Groups::Shared().OnDevice(site, "cuda:" + std::to_string(device), &place);
  if (!found.ok()) return found;
  const client::MutexLock lock(mutex_);
  Entry& entry = entries_[{site.config.alias, device}];
  if (entry.group != nullptr && entry.membership.lock() == place.membership) {
    *group = entry.group;
    return {};
  }
  if (entry.group != nullptr) entry.group->Close();
  entry = {};
  epd_group* const joined = place.membership->group();
  if (joined == nullptr)
    return {kFailedPrecondition, "[epd:FAILED_PRECONDITION] the group was left"};
  const std::shared_ptr<client::Session> session = joined->session;
  const std::shared_ptr<const client::Formation> formation = joined->group->current();
  const client::Status made =
      client::StreamGroup::Create({.slots = formation->slots[place.rank],
                                   .lost = [session] { return session->lost(); },
                                   .group = joined->group,
                                   .rank = place.rank,
                                   .device = device,
                                   .driver = &driver.table,
                                   .image = driver.image},
                                  client::Clock::now() + kMapDeadline, &entry.group);
  if (!made.ok()) {
    entries_.erase({site.config.alias, device});
    return FromClient(made, place.group, place.rank);
  }
  // Nobody calls the C library for this session, whose watchdog starts with the first call.
  const client::Status watched = session->BeforeCall();
  if (!watched.ok()) return FromClient(watched, place.group, place.rank);
  entry.name = place.group;
  entry.rank = place.rank;
  entry.membership = place.membership;
  *group = entry.group;
  return {};
}

void DeviceGroups::FindWith(Finder finder) {
  const client::MutexLock lock(mutex_);
  finder_ = std::move(finder);
}

Status DeviceGroups::Check(const std::string& alias) {
  const client::MutexLock lock(mutex_);
  Status first;
  for (auto it = left_.begin(); it != left_.end();) {
    if (!alias.empty() && it->first != alias) {
      ++it;
      continue;
    }
    if (first.ok()) first = it->second;
    it = left_.erase(it);
  }
  for (auto& [key, entry] : entries_) {
    if (!alias.empty() && key.first != alias) continue;
    const Status status = FromClient(entry.group->Check(), entry.name, entry.rank);
    if (first.ok()) first = status;
  }
  return first;
}

void DeviceGroups::Finalize(const std::string& alias) {
  const client::MutexLock lock(mutex_);
  for (auto it = entries_.begin(); it != entries_.end();) {
    if (it->first.first != alias) {
      ++it;
      continue;
    }
    Entry& entry = it->second;
    const Status status = FromClient(entry.group->Check(), entry.name, entry.rank);
    if (!status.ok()) left_.emplace(alias, status);
    entry.group->Close();
    it = entries_.erase(it);
  }
}

DeviceSites& SitesOf(SiteState& site) {
  static client::Mutex mutex;
  const client::MutexLock lock(mutex);
  if (site.devices == nullptr) site.devices = std::make_shared<DeviceSites>();
  return *site.devices;
}

Status DeviceSites::Get(const std::shared_ptr<client::StreamGroup>& group, int device,
                        const client::StreamCall& call, client::HeldSite** site) {
  const client::MutexLock lock(mutex_);
  Entry& entry = entries_[device];
  if (entry.group != group || entry.site == nullptr) {
    // Graphs that were captured with the old one still arm its slots.
    if (entry.site != nullptr) past_.push_back(std::move(entry));
    entry = {};
    const client::Status added = group->AddSite(call, &entry.site);
    if (!added.ok()) return FromClient(added, "", call.rank);
    entry.group = group;
  }
  *site = entry.site.get();
  return {};
}

}  // namespace epd::jax

size_t epd_jax_cuda_problem(char* text, size_t text_bytes) {
  const std::string& problem = epd::jax::ProcessDriver().problem;
  if (text_bytes > 0) std::snprintf(text, text_bytes, "%s", problem.c_str());
  return problem.size();
}

int epd_jax_cuda_check(const char* alias, epd_error* error) {
  return epd::jax::Report(epd::jax::DeviceGroups::Shared().Check(alias), error);
}

void epd_jax_cuda_finalize(const char* alias) { epd::jax::DeviceGroups::Shared().Finalize(alias); }
