#include "client/program/joined_group.h"

#include <thread>
#include <utility>

#include "client/c/interrupt.h"

namespace epd::program {

Status FromError(int code, const epd_error& error) {
  if (code == EPD_OK) return {};
  return {client::CodeFromNumber(code), error.message};
}

Status Session::Connect(const Endpoint& endpoint, std::shared_ptr<Session>* session) {
  epd_connect_args args = {};
  args.struct_size = sizeof args;
  if (!endpoint.socket_path.empty()) args.socket_path = endpoint.socket_path.c_str();
  if (!endpoint.daemon_path.empty()) args.daemon_path = endpoint.daemon_path.c_str();
  epd_error error = {};
  error.struct_size = sizeof error;
  epd_client* client = nullptr;
  const int code = epd_connect(&args, &client, &error);
  if (code != EPD_OK) return FromError(code, error);
  *session = std::make_shared<Session>(client);
  return {};
}

Session::~Session() { epd_disconnect(client_); }

std::string Session::socket_path() const {
  const char* const path = epd_socket_path(client_);
  return path == nullptr ? "" : path;
}

Status Session::Check() const {
  epd_error error = {};
  error.struct_size = sizeof error;
  return FromError(epd_check(client_, &error), error);
}

JoinedGroup::JoinedGroup(std::shared_ptr<Session> session, epd_group* group, std::uint64_t number)
    : session_(std::move(session)), number_(number), group_(group) {
  epoch_ = Info().epoch;
}

JoinedGroup::~JoinedGroup() { Leave(); }

epd_group* JoinedGroup::group() const {
  const client::MutexLock lock(mutex_);
  return group_;
}

std::uint64_t JoinedGroup::CurrentEpoch() const {
  const epd_group_info info = Info();
  return info.epoch != 0 ? info.epoch : epoch_;
}

epd_group_info JoinedGroup::Info() const {
  epd_group_info info = {};
  info.struct_size = sizeof info;
  const client::MutexLock lock(mutex_);
  if (group_ != nullptr) epd_group_get_info(group_, &info);
  return info;
}

Status JoinedGroup::Check() const {
  Status session = session_->Check();
  if (!session.ok()) return session;
  if (Info().stopping == EPD_GROUP_STOPPED)
    return {Code::kUnavailable, "[epd:UNAVAILABLE] the epd of a node of the group was stopped"};
  // What an operator closed stays closed until the program says otherwise.
  Status ended = CheckGroup();
  return ended.code == Code::kFailedPrecondition ? Status() : ended;
}

Status JoinedGroup::CheckGroup() const {
  epd_error error = {};
  error.struct_size = sizeof error;
  const client::MutexLock lock(mutex_);
  return group_ == nullptr ? Status() : FromError(epd_group_check(group_, &error), error);
}

bool JoinedGroup::EndsInOrder(std::chrono::milliseconds patience) const {
  constexpr std::chrono::milliseconds kPause{5};
  const client::Interrupts interrupts;
  const auto until = std::chrono::steady_clock::now() + patience;
  while (true) {
    const Status session = session_->Check();  // Reads what epd said last.
    const int stopping = Info().stopping;
    if (stopping != EPD_GROUP_STOPS) return stopping == EPD_GROUP_STOPPED;
    if (!session.ok() || interrupts.any() || std::chrono::steady_clock::now() >= until)
      return false;
    std::this_thread::sleep_for(kPause);
  }
}

void JoinedGroup::Leave() {
  const client::MutexLock lock(mutex_);
  if (group_ == nullptr) return;
  epd_error error = {};
  error.struct_size = sizeof error;
  epd_leave(std::exchange(group_, nullptr), &error);  // A lost session has left already.
}

}  // namespace epd::program
