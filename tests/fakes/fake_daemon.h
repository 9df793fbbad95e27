// A daemon in the test's own process: an attach socket, and a worker that matches operations for
// the client executor.
//
// It speaks with the real protobuf library, so that the client's own codec is held to it. It knows
// one group per name, trusts its clients, and has no deadlines: tests of those run against the real
// daemon.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "proto/epd/v1/attach.pb.h"
#include "proto/epd/v1/slots_view.h"

namespace epd::fakes {

class FakeDaemon {
 public:
  struct Options {
    v1::Goodbye refuse;  // Sent instead of Attached, if its status has a code.
    int attach_fds = 2;  // How many descriptors ride with Attached.
    uint64_t slots_magic = shm::kSlotsMagic;
    uint32_t version = 1;
    int missing_arenas = 0;   // How many arena descriptors Joined leaves out.
    bool shrinkable = false;  // Whether the segments lack their seals.
    std::string raw_answer;   // Sent instead of Attached, if not empty.
  };

  FakeDaemon() : FakeDaemon(Options()) {}
  explicit FakeDaemon(Options options);
  ~FakeDaemon();

  const std::string& socket_path() const { return path_; }

  // Ends the sessions by closing their sockets, with a Goodbye if its status has a code; `ended` is
  // not set.
  void CloseSessions(const v1::Goodbye& goodbye = {});
  // Sends a message to every session.
  void SendToAll(const v1::ServerMessage& message);
  // Sends Reform for the formation of `group`, whose announces fail from then on; the next Joined
  // follows when AllowJoined is called, after all its sessions have drained.
  void ReformGroup(const std::string& group, bool wait, const v1::Status& cause);
  void AllowJoined(const std::string& group);
  // While false the worker neither claims nor answers.
  void SetWorking(bool working) { working_ = working; }
  // The code that publishes are answered with from now on; 0: good.
  void FailPublish(uint32_t code, const std::string& message);
  // Sets the sessions' `ended` word.
  void SetEnded();
  // Once an operation's ranks have published, ends the sessions and frees its regions; only then says that it is good.
  // `goodbye`: is sent before, if its status has a code; else the sockets stay open.
  void EndWhenPublished(const v1::Goodbye& goodbye);
  // A copy of the last Drained of each session that sent one.
  std::vector<v1::Drained> drained();
  // Waits until `count` Drained have come. False: not within ten seconds.
  bool AwaitDrained(size_t count);
  int num_sessions();
  uint64_t eventfd_rings() const { return rings_; }

 private:
  struct Session;
  struct Group;
  struct Operation;

  void Serve();
  void Accept();
  void Receive(Session& session);
  void Attach(Session& session);
  void Join(Session& session, const v1::Join& join);
  void SendJoined(Group& group);
  void Drain(Session& session, const v1::Drained& drained);
  void Leave(Session& session, const v1::Leave& leave);
  size_t num_drained() const;  // The mutex is held.

  void Work();
  bool Scan();
  void Announce(Session& session, int slot, const shm::SlotRequest& request);
  void Publish(Session& session, int slot, const shm::SlotRequest& request);
  void Pulled(Session& session, int slot, const shm::SlotRequest& request);
  void Answer(Session& session, int slot, uint32_t code, const std::string& message);
  Group* FindGroup(uint64_t id);
  void EndSessions(const Operation& operation);

  const Options options_;
  std::string folder_;
  std::string path_;
  int listen_fd_ = -1;
  std::atomic<bool> stop_ = false;
  std::atomic<bool> working_ = true;
  std::atomic<uint64_t> rings_ = 0;
  std::mutex mutex_;
  std::condition_variable drained_;
  uint32_t publish_code_ = 0;
  std::string publish_message_;
  std::optional<v1::Goodbye> end_when_published_;
  std::vector<std::unique_ptr<Session>> sessions_;
  std::map<std::string, std::unique_ptr<Group>> groups_;
  std::map<uint64_t, std::unique_ptr<Operation>> operations_;
  uint64_t next_op_id_ = 100;
  uint64_t next_offset_ = 0;
  std::thread server_;
  std::thread worker_;
};

}  // namespace epd::fakes
