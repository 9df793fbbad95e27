#include "client/cuda/owned_sites.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace epd::client {
namespace {

// XLA keeps an executable until its executions have ended; a site's slots are taken back this long after.
constexpr std::chrono::seconds kQuiet{1};

}  // namespace

void OwnedSites::Retire(const StreamSite& site, Clock::time_point now) {
  for (Owned& owned : sites_) {
    if (owned.site.get() != &site) continue;
    owned.retired = true;
    owned.quiet_since = now;
  }
}

void OwnedSites::ReleaseRetired(Clock::time_point now) {
  std::erase_if(sites_, [&](Owned& owned) {
    if (!owned.retired) return false;
    if (owned.site->open()) owned.quiet_since = now;
    return now - owned.quiet_since >= kQuiet;
  });
}

void OwnedSites::Enter(const Formation& formation) {
  for (Owned& owned : sites_) owned.site->Enter(formation);
}

void OwnedSites::Leave() {
  for (Owned& owned : sites_) {
    if (owned.site->captured()) owned.site->Leave();
  }
}

void OwnedSites::NotePuts() {
  for (Owned& owned : sites_) owned.site->NotePuts();
}

bool OwnedSites::HavePutsEnded() const {
  return std::all_of(sites_.begin(), sites_.end(),
                     [](const Owned& owned) { return owned.site->HavePutsEnded(); });
}

bool OwnedSites::HaveCaptured() const {
  return std::any_of(sites_.begin(), sites_.end(),
                     [](const Owned& owned) { return owned.site->captured(); });
}

bool OwnedSites::AreReplaying() const {
  return std::any_of(sites_.begin(), sites_.end(),
                     [](const Owned& owned) { return owned.site->replaying(); });
}

void OwnedSites::Forget() {
  for (Owned& owned : sites_) {
    owned.site->Forget();
    owned.site->Ring();
  }
}

Status OwnedSites::TakeFailure() {
  Status first;
  for (Owned& owned : sites_) {
    Status failed = owned.site->TakeFailure();
    if (first.ok()) first = std::move(failed);
  }
  return first;
}

bool OwnedSites::EndOpen(Code code) {
  bool failed = false;
  for (Owned& owned : sites_) failed |= owned.site->EndOpen(code) && !owned.site->waited();
  return failed;
}

}  // namespace epd::client
