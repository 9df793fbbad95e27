#include "client/program/device_groups.h"

#include <utility>

#include "client/cuda/open_stream_group.h"

namespace epd::program {
namespace {

// Staging is mapped at once: the group is READY already.
constexpr std::chrono::seconds kMapDeadline{60};

}  // namespace

DeviceGroups& DeviceGroups::Shared() {
  static auto* const groups = new DeviceGroups;
  return *groups;
}

Status DeviceGroups::Find(const epd_program_call& call, int device,
                          std::shared_ptr<client::StreamGroup>* group) {
  {
    const client::MutexLock lock(mutex_);
    if (finder_ != nullptr) return finder_(call, device, group);
  }
  const client::CudaDriver& driver = client::ProcessDriver();
  if (!driver.problem.empty()) {
    return {Code::kFailedPrecondition,
            "[epd:FAILED_PRECONDITION] group=" + std::string(call.alias) +
                " phase=begin: this process cannot use its GPUs: " + driver.problem};
  }
  DevicePlace place;
  const Status found = Groups::Shared().OnDevice(call, "cuda:" + std::to_string(device), &place);
  if (!found.ok()) return found;
  const client::MutexLock lock(mutex_);
  Entry& entry = entries_[{call.alias, device}];
  if (entry.group != nullptr && entry.joined.lock() == place.joined) {
    *group = entry.group;
    return {};
  }
  if (entry.group != nullptr) entry.group->Close();
  entry = {};
  epd_group* const joined = place.joined->group();
  if (joined == nullptr)
    return {Code::kFailedPrecondition, "[epd:FAILED_PRECONDITION] the group was left"};
  const client::Status made = client::OpenStreamGroup(
      {*joined, place.rank, device}, driver, client::Clock::now() + kMapDeadline, &entry.group);
  if (!made.ok()) {
    entries_.erase({call.alias, device});
    return client::AtPlace(made, {.group = place.group, .rank = place.rank, .phase = "stream"});
  }
  entry.joined = place.joined;
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
    const Status status = entry.group->Check();
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
    const Status status = entry.group->Check();
    if (!status.ok()) left_.emplace(alias, status);
    entry.group->Close();
    it = entries_.erase(it);
  }
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
    if (!added.ok()) return added;
    entry.group = group;
  }
  *site = entry.site.get();
  return {};
}

}  // namespace epd::program
