#include "tests/fakes/fake_epd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <new>
#include <stdexcept>
#include <thread>
#include <utility>

#include "proto/epd/v1/slot_word.h"

namespace epd {
namespace {

using Clock = std::chrono::steady_clock;

UniqueFd MakeSegment(size_t bytes) {
  UniqueFd fd(memfd_create("fake-epd", MFD_CLOEXEC));
  if (!fd.valid() || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    throw std::runtime_error("memfd of the fake epd");
  }
  return fd;
}

// Polls `done` without a fixed pause; the tests' machines have few cores.
template <typename Done>
bool WaitUntil(int limit_ms, Done done) {
  const auto end = Clock::now() + std::chrono::milliseconds(limit_ms);
  while (!done()) {
    if (Clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace

FakeSession::FakeSession(uint64_t id, uint32_t record_index)
    : id_(id),
      record_index_(record_index),
      segment_fd_(MakeSegment(sizeof(shm::SlotsSegment))),
      wakeup_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      mapping_(Mapping::Open(segment_fd_, sizeof(shm::SlotsSegment)).value()) {
  shm::SlotsView::Create(mapping_.data(), id, /*incarnation=*/0);
}

void FakeSession::Arm(uint32_t index, const shm::SlotRequest& request) {
  shm::Slot& s = slot(index);
  s.request = request;
  shm::Arm(s.word);
  segment().header.armed[index / 64].fetch_or(uint64_t{1} << (index % 64));
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (segment().header.asleep.load() != 0) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wakeup_.get(), &one, sizeof one);
  }
}

bool FakeSession::answered(uint32_t index) { return shm::Done(slot(index).word.load()) != 0; }

std::optional<uint32_t> FakeSession::Wait(uint32_t index, int limit_ms) {
  if (!WaitUntil(limit_ms, [&] { return answered(index); })) return std::nullopt;
  return shm::AnswerCode(slot(index).word.load());
}

FakeEpd::FakeEpd(Options options)
    : options_(std::move(options)),
      records_fd_(MakeSegment(sizeof(shm::RecordsSegment))),
      records_(Mapping::Open(records_fd_, sizeof(shm::RecordsSegment)).value()) {
  shm::RecordsView::Create(records_.data(), shm::kSlotsPerSession);
  StartWorker();
}

FakeEpd::~FakeEpd() {
  CloseSocket();
  if (!WaitForExit(5'000).has_value()) KillWorker();
}

void FakeEpd::StartWorker() {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
    throw std::runtime_error("socketpair of the fake epd");
  }
  socket_ = UniqueFd(pair[0]);
  const int send_bytes = 512 << 10;  // Room for a message that is too long.
  setsockopt(socket_.get(), SOL_SOCKET, SO_SNDBUF, &send_bytes, sizeof send_bytes);
  const UniqueFd theirs(pair[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, theirs.get(), 3);
  std::string flag = "--control-fd=3";
  char* argv[] = {options_.worker.data(), flag.data(), nullptr};
  const int error = posix_spawn(&pid_, options_.worker.c_str(), &actions, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::runtime_error("cannot start " + options_.worker);

  v1::ToWorker hello;
  hello.mutable_hello()->set_incarnation(1);
  hello.mutable_hello()->set_worker_incarnation(options_.worker_incarnation++);
  hello.mutable_hello()->set_staging_bytes(options_.staging_bytes);
  hello.mutable_hello()->set_simd("auto");
  hello.mutable_hello()->mutable_spin()->set_nanos(20'000);
  hello.mutable_hello()->set_nccl_library(options_.nccl_library);
  Send(hello, {records_fd_.get()});
  ready_ = Receive(nullptr, 30'000).ready();
}

void FakeEpd::KillWorker() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void FakeEpd::CloseSocket() { socket_ = UniqueFd(); }

std::optional<int> FakeEpd::WaitForExit(int limit_ms) {
  int status = 0;
  if (pid_ < 0) return status;
  if (!WaitUntil(limit_ms, [&] { return waitpid(pid_, &status, WNOHANG) == pid_; })) {
    return std::nullopt;
  }
  pid_ = -1;
  return status;
}

void FakeEpd::Send(const v1::ToWorker& message, const std::vector<int>& fds) {
  SendBytes(message.SerializeAsString(), fds);
}

void FakeEpd::SendBytes(std::string bytes, const std::vector<int>& fds) {
  iovec part = {bytes.data(), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(c), fds.data(), fds.size() * sizeof(int));
  }
  ASSERT_EQ(sendmsg(socket_.get(), &header, MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
}

v1::FromWorker FakeEpd::Receive(std::vector<UniqueFd>* fds, int limit_ms) {
  v1::FromWorker message;
  pollfd watched = {.fd = socket_.get(), .events = POLLIN, .revents = 0};
  if (poll(&watched, 1, limit_ms) != 1) {
    ADD_FAILURE() << "the worker says nothing";
    return message;
  }
  std::string bytes(256 * 1024, '\0');
  iovec part = {bytes.data(), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(250 * sizeof(int))];
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  const ssize_t got = recvmsg(socket_.get(), &header, MSG_CMSG_CLOEXEC);
  if (got <= 0) {
    ADD_FAILURE() << "the worker is gone";
    return message;  // Nothing was written into `control`.
  }
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    for (size_t at = 0; at + sizeof(int) <= c->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + at, sizeof fd);
      UniqueFd owned(fd);
      if (fds != nullptr) fds->push_back(std::move(owned));
    }
  }
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(got)))
    ADD_FAILURE() << "the worker's message of " << got << " bytes does not parse";
  return message;
}

FakeSession& FakeEpd::AddSession(uint64_t id) {
  sessions_.push_back(std::make_unique<FakeSession>(id, static_cast<uint32_t>(sessions_.size())));
  Introduce(*sessions_.back());
  return *sessions_.back();
}

void FakeEpd::Introduce(FakeSession& session) {
  v1::ToWorker message;
  message.mutable_add_session()->set_session_id(session.id());
  message.mutable_add_session()->set_record_index(session.record_index());
  message.mutable_add_session()->set_pid(getpid());
  Send(message, {session.segment_fd(), session.wakeup_fd()});
}

v1::GroupSpec FakeSpec(uint32_t num_ranks) {
  v1::GroupSpec spec;
  spec.set_name("g");
  spec.set_num_ranks(num_ranks);
  spec.set_num_experts(4);
  spec.set_max_tokens_per_rank(16);
  spec.set_recv_capacity_per_rank(64);
  spec.set_hidden(8);
  spec.set_top_k(2);
  spec.set_max_token_dtype(v1::DTYPE_FLOAT32);
  spec.set_executor(v1::EXECUTOR_CLIENT);
  spec.set_backend("cpu");
  return spec;
}

FakeTenant StartFakeTenant(FakeEpd& epd, uint64_t group_id, uint64_t formation,
                           const v1::GroupSpec& spec) {
  FakeTenant tenant;
  tenant.group_id = group_id;
  tenant.formation = formation;
  tenant.num_experts = spec.num_experts();
  v1::ToWorker message;
  v1::StartTenant& start = *message.mutable_start_tenant();
  start.set_group_id(group_id);
  start.set_epoch(tenant.epoch);
  start.set_formation(formation);
  *start.mutable_spec() = spec;
  for (uint32_t rank = 0; rank < spec.num_ranks(); ++rank) {
    tenant.ranks.push_back(epd.sessions()[rank].get());
    v1::StartTenant::Member& member = *start.add_members();
    member.set_rank(rank);
    member.set_session_id(tenant.ranks.back()->id());
    member.set_host("host" + std::to_string(rank));
    member.set_pid(100 + static_cast<int>(rank));
  }
  epd.Send(message);
  const v1::FromWorker answer = epd.Receive(&tenant.fds);
  EXPECT_TRUE(answer.has_tenant_ready()) << answer.ShortDebugString();
  EXPECT_EQ(answer.tenant_ready().status().code(), 0) << answer.tenant_ready().status().message();
  EXPECT_EQ(tenant.fds.size(), 2 * spec.num_ranks());
  for (int i = 0; i < answer.tenant_ready().arenas_size(); ++i) {
    tenant.arenas.push_back(
        Mapping::Open(tenant.fds[2 * i], answer.tenant_ready().arenas(i).bytes()).value());
  }
  return tenant;
}

shm::SlotRequest FakeTenant::Announce(uint32_t rank) const {
  shm::SlotRequest request = {};
  request.step = shm::Step::kAnnounce;
  request.kind = shm::Kind::kPrepare;
  request.group_id = group_id;
  request.epoch = epoch;
  request.formation = formation;
  request.rank = rank;
  request.program[0] = 1;
  request.top_k = 2;
  request.alignment = 1;
  request.num_tokens = 4;
  request.stage_bytes = num_experts * sizeof(int32_t);
  return request;
}

}  // namespace epd
