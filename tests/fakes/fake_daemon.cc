#include "tests/fakes/fake_daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/fakes/fake_daemon_state.h"

namespace epd::fakes {
namespace {

[[noreturn]] void Die(const char* what) {
  std::perror(what);
  std::abort();
}

int MakeMemory(const char* name, uint64_t bytes, bool shrinkable) {
  const int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) Die("memfd");
  if (!shrinkable && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) Die("F_ADD_SEALS");
  return fd;
}

void SendBytes(int fd, const std::string& bytes, const std::vector<int>& fds) {
  iovec part = {const_cast<char*>(bytes.data()), bytes.size()};
  std::vector<char> control(CMSG_SPACE(fds.size() * sizeof(int)));
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(c), fds.data(), fds.size() * sizeof(int));
  }
  // The client may be gone already.
  [[maybe_unused]] const ssize_t sent = sendmsg(fd, &header, MSG_NOSIGNAL);
}

void Send(int fd, const v1::ServerMessage& message, const std::vector<int>& fds = {}) {
  SendBytes(fd, message.SerializeAsString(), fds);
}

}  // namespace

FakeDaemon::FakeDaemon(Options options) : options_(std::move(options)) {
  char folder[] = "/tmp/epd-fake-XXXXXX";
  if (mkdtemp(folder) == nullptr) Die("mkdtemp");
  folder_ = folder;
  path_ = folder_ + "/epd.sock";
  listen_fd_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path_.c_str(), sizeof address.sun_path - 1);
  if (bind(listen_fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) Die("bind");
  if (listen(listen_fd_, 64) != 0) Die("listen");
  server_ = std::thread([this] { Serve(); });
  worker_ = std::thread([this] { Work(); });
}

FakeDaemon::~FakeDaemon() {
  stop_ = true;
  server_.join();
  worker_.join();
  CloseSessions();
  for (const auto& session : sessions_) {
    close(session->slots_fd);
    close(session->event_fd);
    munmap(session->segment, sizeof(shm::SlotsSegment));
  }
  for (const auto& [name, group] : groups_) {
    for (const Group::Member& member : group->members) {
      if (member.arena_fd >= 0) close(member.arena_fd);
    }
  }
  close(listen_fd_);
  unlink(path_.c_str());
  rmdir(folder_.c_str());
}

void FakeDaemon::Serve() {
  while (!stop_) {
    std::vector<pollfd> fds = {{listen_fd_, POLLIN, 0}};
    std::vector<Session*> sessions;
    {
      std::lock_guard lock(mutex_);
      for (const auto& session : sessions_) {
        if (session->fd < 0) continue;
        fds.push_back({session->fd, POLLIN, 0});
        sessions.push_back(session.get());
      }
    }
    if (poll(fds.data(), fds.size(), 5) <= 0) continue;
    std::lock_guard lock(mutex_);
    if (fds[0].revents != 0) Accept();
    for (size_t i = 0; i < sessions.size(); ++i) {
      if (fds[i + 1].revents != 0 && sessions[i]->fd >= 0) Receive(*sessions[i]);
    }
  }
}

void FakeDaemon::Accept() {
  auto session = std::make_unique<Session>();
  session->fd = accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC);
  if (session->fd < 0) return;
  session->id = sessions_.size() + 1;
  session->slots_fd = MakeMemory("slots", sizeof(shm::SlotsSegment), options_.shrinkable);
  session->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  void* data = mmap(nullptr, sizeof(shm::SlotsSegment), PROT_READ | PROT_WRITE, MAP_SHARED,
                    session->slots_fd, 0);
  if (data == MAP_FAILED) Die("mmap");
  session->segment = static_cast<shm::SlotsSegment*>(data);
  shm::SlotsView::Create(data, session->id, 7);
  session->segment->header.magic = options_.slots_magic;
  sessions_.push_back(std::move(session));
}

void FakeDaemon::Receive(Session& session) {
  std::string bytes(256 * 1024, '\0');
  const ssize_t got = recv(session.fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
  v1::ClientMessage message;
  if (got <= 0 || !message.ParseFromArray(bytes.data(), static_cast<int>(got))) {
    close(session.fd);
    session.fd = -1;
    return;
  }
  if (message.has_attach()) Attach(session);
  if (message.has_join()) Join(session, message.join());
  if (message.has_leave()) Leave(session, message.leave());
  if (message.has_drained()) Drain(session, message.drained());
}

void FakeDaemon::Attach(Session& session) {
  v1::ServerMessage answer;
  if (!options_.raw_answer.empty()) return SendBytes(session.fd, options_.raw_answer, {});
  if (options_.refuse.status().code() != 0) {
    *answer.mutable_goodbye() = options_.refuse;
    return Send(session.fd, answer);
  }
  v1::Attached& attached = *answer.mutable_attached();
  attached.set_version(options_.version);
  attached.set_session_id(session.id);
  attached.set_incarnation(7);
  attached.set_node("fake-node");
  attached.set_daemon_version("0.0.1");
  attached.set_daemon_pid(static_cast<uint32_t>(getpid()));
  std::vector<int> fds = {session.slots_fd, session.event_fd};
  fds.resize(static_cast<size_t>(options_.attach_fds), session.event_fd);
  Send(session.fd, answer, fds);
}

void FakeDaemon::Join(Session& session, const v1::Join& join) {
  std::unique_ptr<Group>& group = groups_[join.spec().name()];
  if (group == nullptr) {
    group = std::make_unique<Group>();
    group->id = 1000 + groups_.size();
    group->spec = join.spec();
    group->members.resize(join.spec().num_ranks());
  }
  for (const uint32_t rank : join.ranks()) {
    if (rank >= group->members.size()) {
      v1::ServerMessage answer;
      answer.mutable_join_failed()->set_request_id(join.request_id());
      answer.mutable_join_failed()->mutable_status()->set_code(3);
      answer.mutable_join_failed()->mutable_status()->set_message("no such rank");
      return Send(session.fd, answer);
    }
    const int arena = MakeMemory("arena", kArenaBytes, options_.shrinkable);
    group->members[rank] = {&session, join.request_id(), arena, false};
  }
  for (const Group::Member& member : group->members) {
    if (member.session == nullptr) return;
  }
  SendJoined(*group);
}

void FakeDaemon::SendJoined(Group& group) {
  std::vector<Session*> sent;
  for (Group::Member& to : group.members) {
    if (std::find(sent.begin(), sent.end(), to.session) != sent.end()) continue;
    sent.push_back(to.session);
    v1::ServerMessage answer;
    v1::Joined& joined = *answer.mutable_joined();
    joined.set_request_id(group.formation == 1 ? to.request_id : 0);
    joined.set_group_id(group.id);
    joined.set_epoch(1);
    joined.set_formation(group.formation);
    *joined.mutable_spec() = group.spec;
    std::vector<int> fds;
    for (uint32_t rank = 0; rank < group.members.size(); ++rank) {
      const Group::Member& member = group.members[rank];
      v1::Joined::Arena& arena = *joined.add_arenas();
      arena.set_rank(rank);
      arena.set_bytes(kArenaBytes);
      arena.set_own(member.session == to.session);
      v1::Joined::Member& described = *joined.add_members();
      described.set_rank(rank);
      described.set_pid(getpid());
      fds.push_back(member.arena_fd);
    }
    for (int i = 0; i < options_.missing_arenas; ++i) fds.pop_back();
    Send(to.session->fd, answer, fds);
  }
}

void FakeDaemon::Drain(Session& session, const v1::Drained& drained) {
  Group* group = FindGroup(drained.group_id());
  if (group == nullptr) return;
  group->last_drained.push_back(drained);
  for (Group::Member& member : group->members) {
    if (member.session == &session && drained.formation() == group->formation)
      member.drained = true;
  }
  drained_.notify_all();
}

size_t FakeDaemon::num_drained() const {
  size_t count = 0;
  for (const auto& [name, group] : groups_) count += group->last_drained.size();
  return count;
}

bool FakeDaemon::AwaitDrained(size_t count) {
  std::unique_lock lock(mutex_);
  return drained_.wait_for(lock, std::chrono::seconds(10), [&] { return num_drained() >= count; });
}

void FakeDaemon::AllowJoined(const std::string& name) {
  std::lock_guard lock(mutex_);
  Group& group = *groups_.at(name);
  for (Group::Member& member : group.members) {
    if (!member.drained) Die("AllowJoined before all drained");
    member.drained = false;
  }
  group.reforming = false;
  ++group.formation;
  SendJoined(group);
}

void FakeDaemon::Leave(Session& session, const v1::Leave& leave) {
  v1::ServerMessage answer;
  answer.mutable_left()->set_request_id(leave.request_id());
  if (leave.request_id() != 0) Send(session.fd, answer);
}

FakeDaemon::Group* FakeDaemon::FindGroup(uint64_t id) {
  for (const auto& [name, group] : groups_) {
    if (group->id == id) return group.get();
  }
  return nullptr;
}

void FakeDaemon::CloseSessions(const v1::Goodbye& goodbye) {
  std::lock_guard lock(mutex_);
  for (const auto& session : sessions_) {
    if (session->fd < 0) continue;
    if (goodbye.status().code() != 0) {
      v1::ServerMessage message;
      *message.mutable_goodbye() = goodbye;
      Send(session->fd, message);
    }
    shutdown(session->fd, SHUT_RDWR);  // At once, also while the server thread polls it.
    close(session->fd);
    session->fd = -1;
  }
}

void FakeDaemon::SendToAll(const v1::ServerMessage& message) {
  std::lock_guard lock(mutex_);
  for (const auto& session : sessions_) {
    if (session->fd >= 0) Send(session->fd, message);
  }
}

void FakeDaemon::ReformGroup(const std::string& name, bool wait, const v1::Status& cause) {
  v1::ServerMessage message;
  {
    std::lock_guard lock(mutex_);
    Group& group = *groups_.at(name);
    group.reforming = true;
    message.mutable_reform()->set_group_id(group.id);
    message.mutable_reform()->set_formation(group.formation);
    message.mutable_reform()->set_wait(wait);
    *message.mutable_reform()->mutable_cause() = cause;
  }
  SendToAll(message);
}

void FakeDaemon::FailPublish(uint32_t code, const std::string& message) {
  std::lock_guard lock(mutex_);
  publish_code_ = code;
  publish_message_ = message;
}

void FakeDaemon::SetEnded() {
  std::lock_guard lock(mutex_);
  for (const auto& session : sessions_) session->segment->header.ended.store(1);
}

void FakeDaemon::EndWhenPublished(const v1::Goodbye& goodbye) {
  std::lock_guard lock(mutex_);
  end_when_published_ = goodbye;
}

void FakeDaemon::EndSessions(const Operation& operation) {
  for (const auto& session : sessions_) {
    session->segment->header.ended.store(1);
    if (end_when_published_->status().code() == 0) continue;
    v1::ServerMessage message;
    *message.mutable_goodbye() = *end_when_published_;
    Send(session->fd, message);
    shutdown(session->fd, SHUT_RDWR);
  }
  for (const auto& [name, group] : groups_) {
    for (const Group::Member& member : group->members) {
      if (fallocate(member.arena_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    static_cast<off_t>(operation.offset), static_cast<off_t>(operation.bytes)) != 0)
        Die("fallocate");
    }
  }
}

std::vector<v1::Drained> FakeDaemon::drained() {
  std::lock_guard lock(mutex_);
  std::vector<v1::Drained> all;
  for (const auto& [name, group] : groups_) {
    all.insert(all.end(), group->last_drained.begin(), group->last_drained.end());
  }
  return all;
}

int FakeDaemon::num_sessions() {
  std::lock_guard lock(mutex_);
  int open = 0;
  for (const auto& session : sessions_) open += session->fd >= 0 ? 1 : 0;
  return open;
}

}  // namespace epd::fakes
