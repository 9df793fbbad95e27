// Handles of the C library that end with their last user: a session with epd, and ranks in a group.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "client/c/epd_client.h"
#include "client/c/mutex.h"
#include "client/program/group_config.h"

namespace epd::program {

// A code and its text, as the C library reported them.
Status FromError(int code, const epd_error& error);

// One session with one epd, shared by all groups of this process.
class Session {
 public:
  // See epd_connect for the errors.
  static Status Connect(const Endpoint& endpoint, std::shared_ptr<Session>* session);

  explicit Session(epd_client* client) : client_(client) {}
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  epd_client* client() const { return client_; }
  std::string socket_path() const;

  // Why the session ended, or OK.
  Status Check() const;

 private:
  epd_client* const client_;
};

// This process's ranks in a group. The last user leaves it.
class JoinedGroup {
 public:
  JoinedGroup(std::shared_ptr<Session> session, epd_group* group, std::uint64_t number);
  ~JoinedGroup();
  JoinedGroup(const JoinedGroup&) = delete;
  JoinedGroup& operator=(const JoinedGroup&) = delete;

  epd_group* group() const;  // nullptr after Leave.
  // Counts this process's joins of the group, from 1.
  std::uint64_t number() const { return number_; }
  std::uint64_t epoch() const { return epoch_; }
  // Of the group as it is formed now: workers may have been replaced since.
  std::uint64_t CurrentEpoch() const;

  epd_plans plans() const { return Info().plans; }

  // Why calls can no longer succeed here and the group must be joined again, or OK.
  Status Check() const;

  // After a call that failed: whether a node's daemon stops in order, so that the call may be repeated in a later join.
  // Waits up to `patience` for operations of other calls to end.
  bool EndsInOrder(std::chrono::milliseconds patience) const;

  // Leaves now: calls in flight fail. No new call may begin.
  void Leave();

 private:
  epd_group_info Info() const;
  // Why the group has ended, or OK.
  Status CheckGroup() const;

  const std::shared_ptr<Session> session_;
  const std::uint64_t number_;
  std::uint64_t epoch_ = 0;
  mutable client::Mutex mutex_;
  epd_group* group_ EPD_GUARDED_BY(mutex_);
};

}  // namespace epd::program
