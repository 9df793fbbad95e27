// A client that speaks the attach protocol well enough to get slots and a group, and then writes what it likes.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "client/c/attach_messages.h"
#include "client/c/attach_socket.h"
#include "client/c/mapping.h"
#include "proto/epd/v1/slots_view.h"

namespace epd::testing {

// Of a daemon with slots_per_session=4096.
class HostileClient {
 public:
  // Says that it takes `features`.
  explicit HostileClient(uint64_t features) : features_(features) {}
  // "" or what went wrong.
  std::string Attach(const std::string& path);
  // A group of one rank of its own. "" or what went wrong.
  std::string Join(bool worker_executor, const std::string& name = "hostile");

  shm::SlotsLayout layout() const { return shm::SlotsLayout::For(features_, limits::kMaxOpSlots); }
  shm::SlotsView slots() const { return shm::SlotsView::Of(mapping_.data(), layout()); }
  const client::Joined& joined() const { return joined_; }

  // Marks all slots as armed, and wakes the worker.
  void Ring() const;

 private:
  const uint64_t features_;
  client::AttachSocket socket_;
  client::AttachSocket::Datagram attached_;
  client::Mapping mapping_;
  client::Joined joined_;
};

}  // namespace epd::testing
