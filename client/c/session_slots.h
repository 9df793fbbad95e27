// A session's op slots for one worker of the node.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "client/c/attach_messages.h"
#include "client/c/mapping.h"
#include "client/c/slot_pool.h"
#include "client/c/unique_fd.h"

namespace epd::client {

class SessionSlots {
 public:
  // Maps what the daemon sent: fds[first] the segment, fds[first + 1] the eventfd, which is taken.
  //   DATA_LOSS           no slots of this session
  //   UNIMPLEMENTED       slots of a version that this library does not read
  //   RESOURCE_EXHAUSTED  no address space
  static Status Map(std::vector<UniqueFd>& fds, size_t first, const Attached& attached,
                    std::shared_ptr<SessionSlots>* slots);

  SlotPool& pool() { return pool_; }
  // For a forked child, which has nothing to wake.
  void CloseEvent() { event_ = UniqueFd(); }

 private:
  SessionSlots(Mapping mapping, UniqueFd event, const shm::SlotsView& view)
      : mapping_(std::move(mapping)), event_(std::move(event)), pool_(view, event_.get()) {}

  const Mapping mapping_;
  UniqueFd event_;
  SlotPool pool_;
};

}  // namespace epd::client
