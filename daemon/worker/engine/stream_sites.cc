#include "daemon/worker/engine/stream_sites.h"

namespace epd {

void StreamSites::Begin(Site& site) {
  site.expects = shm::Step::kStreamPublish;
  site.cause = absl::OkStatus();
}

StreamSites::Announced StreamSites::TakeAnnounce(const Submission& submission,
                                                 const shm::SlotRequest& request) {
  Site& site = sites_[{submission.session, submission.slot}];
  if (site.expects == shm::Step::kStreamAnnounce && !site.operation) {
    Begin(site);
    return {.begins = true, .written_over = {}};
  }
  const std::unique_ptr<Held> before =
      std::exchange(site.held, std::make_unique<Held>(Held{submission, request}));
  return {.begins = false, .written_over = before ? std::optional(*before) : std::nullopt};
}

StreamSites::Published StreamSites::TakePublish(const StreamSiteKey& key) {
  Site& site = sites_[key];
  site.expects = shm::Step::kStreamPulled;
  return {.operation = site.operation, .cause = site.cause};
}

std::optional<OperationId> StreamSites::ExpectsPulled(const StreamSiteKey& key) {
  const Site& site = sites_[key];
  if (site.expects != shm::Step::kStreamPulled) return std::nullopt;
  return site.operation;
}

void StreamSites::TakePulled(const StreamSiteKey& key) {
  Site& site = sites_[key];
  site.expects = shm::Step::kStreamAnnounce;
  NoteIfFree(key, site);
}

void StreamSites::Join(const StreamSiteKey& key, OperationId operation) {
  sites_[key].operation = operation;
}

void StreamSites::Leave(const StreamSiteKey& key) {
  const auto found = sites_.find(key);
  if (found == sites_.end()) return;
  found->second.operation = OperationId();
  NoteIfFree(key, found->second);
}

void StreamSites::NoteIfFree(const StreamSiteKey& key, const Site& site) {
  const bool free = site.expects == shm::Step::kStreamAnnounce && !site.operation;
  if (free && site.held != nullptr) freed_.push_back(key);
}

void StreamSites::NoteCause(const Submission& submission, const absl::Status& cause) {
  if (cause.ok()) return;
  const auto site = sites_.find({submission.session, submission.slot});
  if (site != sites_.end()) site->second.cause = cause;
}

void StreamSites::ForgetSession(SessionId session) {
  sites_.erase(sites_.lower_bound({session, 0}), sites_.upper_bound({session, UINT32_MAX}));
}

std::vector<StreamSites::Held> StreamSites::TakeHeld() {
  std::vector<Held> begin;
  for (const StreamSiteKey& key : std::exchange(freed_, {})) {
    const auto found = sites_.find(key);
    if (found == sites_.end() || found->second.held == nullptr) continue;
    begin.push_back(*std::exchange(found->second.held, nullptr));
    Begin(found->second);
  }
  return begin;
}

std::vector<StreamSites::Held> StreamSites::TakeAllHeld() {
  std::vector<Held> held;
  for (auto& [unused, site] : sites_) {
    if (site.held != nullptr) held.push_back(*std::exchange(site.held, nullptr));
  }
  return held;
}

}  // namespace epd
