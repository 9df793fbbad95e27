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
  const auto deadline = client::Clock::now() + kMapDeadline;
  Entry entry;
  const Status made = entries_.Get(
      {call.alias, device}, deadline,
      [&place](const Entry& there) { return there.joined.lock() == place.joined; },
      [&](Entry* made_here) {
        if (made_here->group != nullptr) {
          made_here->group->Close();
          KeepPast(call.alias, made_here->group);
        }
        *made_here = {place.joined, nullptr};
        epd_group* const joined = place.joined->group();
        if (joined == nullptr) return Status{Code::kFailedPrecondition, "the group was left"};
        return client::OpenStreamGroup({*joined, place.rank, device}, driver, deadline,
                                       &made_here->group);
      },
      &entry);
  if (!made.ok()) {
    return client::AtPlace(made, {.group = place.group, .rank = place.rank, .phase = "stream"});
  }
  *group = entry.group;
  return {};
}

void DeviceGroups::FindWith(Finder finder) {
  const client::MutexLock lock(mutex_);
  finder_ = std::move(finder);
}

void DeviceGroups::KeepPast(const std::string& alias,
                            const std::shared_ptr<client::StreamGroup>& group) {
  const client::MutexLock lock(mutex_);
  std::erase_if(past_, [](const auto& past) { return past.second.expired(); });
  past_.emplace_back(alias, group);
}

Status DeviceGroups::Check(const std::string& alias) {
  const auto entries = entries_.All();
  const client::MutexLock lock(mutex_);
  Status first;
  for (const auto& [past_alias, past] : past_) {
    const std::shared_ptr<client::StreamGroup> group = past.lock();
    if (group == nullptr || (!alias.empty() && past_alias != alias)) continue;
    Status status = group->Check();
    if (first.ok()) first = std::move(status);
  }
  for (auto it = left_.begin(); it != left_.end();) {
    if (!alias.empty() && it->first != alias) {
      ++it;
      continue;
    }
    if (first.ok()) first = it->second;
    it = left_.erase(it);
  }
  for (const auto& [key, entry] : entries) {
    if (!alias.empty() && key.first != alias) continue;
    const Status status = entry.group->Check();
    if (first.ok()) first = status;
  }
  return first;
}

void DeviceGroups::Finalize(const std::string& alias) {
  const auto of_alias = [&alias](const Key& key) { return key.first == alias; };
  for (const Entry& entry : entries_.Take(of_alias, client::Clock::now() + kMapDeadline)) {
    const Status status = entry.group->Check();
    entry.group->Close();
    const client::MutexLock lock(mutex_);
    if (!status.ok()) left_.emplace(alias, status);
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
