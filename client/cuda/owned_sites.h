// The sites of a stream group, with those that were given back and whose slots a stream may still arm.
#pragma once

#include <memory>
#include <vector>

#include "client/c/group.h"
#include "client/c/status.h"
#include "client/cuda/stream_site.h"

namespace epd::client {

// Not thread-safe: under the group's mutex.
class OwnedSites {
 public:
  // So that the next Add needs no memory.
  void MakeRoom() {
    if (sites_.size() == sites_.capacity()) sites_.reserve(2 * sites_.size() + 1);
  }
  void Add(std::unique_ptr<StreamSite> site) { sites_.push_back({.site = std::move(site)}); }
  void Retire(const StreamSite& site, Clock::time_point now);
  // Destroys those that were retired and have armed nothing for a while.
  void ReleaseRetired(Clock::time_point now);
  bool empty() const { return sites_.empty(); }

  void Enter(const Formation& formation);
  // What is captured begins nothing any more (StreamSite::Leave). Nothing may be put meanwhile.
  void Leave();
  void NotePuts();
  // What was put before the last NotePuts is over.
  bool HavePutsEnded() const;
  // There are calls that may be replayed; and a stream is in one.
  bool HaveCaptured() const;
  bool AreReplaying() const;
  // The worker need not look at their slots any more; at what is armed it looks once more.
  void Forget();

  // The first call that failed since the last TakeFailure; OK: none.
  Status TakeFailure();
  // Ends what is open, since nobody else will. True: a use has failed by that, of which nobody hears otherwise.
  bool EndOpen(Code code);

 private:
  struct Owned {
    std::unique_ptr<StreamSite> site;
    bool retired = false;
    Clock::time_point quiet_since = {};
  };
  std::vector<Owned> sites_;
};

}  // namespace epd::client
