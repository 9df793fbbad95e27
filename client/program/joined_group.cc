#include "client/program/joined_group.h"

#include <utility>

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
  epd_group_info info = {};
  info.struct_size = sizeof info;
  if (epd_group_get_info(group_, &info) == EPD_OK) epoch_ = info.epoch;
}

JoinedGroup::~JoinedGroup() { Leave(); }

epd_group* JoinedGroup::group() const {
  const client::MutexLock lock(mutex_);
  return group_;
}

std::uint64_t JoinedGroup::CurrentEpoch() const {
  epd_group_info info = {};
  info.struct_size = sizeof info;
  epd_group* const joined = group();
  return joined != nullptr && epd_group_get_info(joined, &info) == EPD_OK ? info.epoch : epoch_;
}

Status JoinedGroup::Check() const {
  Status session = session_->Check();
  if (!session.ok()) return session;
  epd_group_info info = {};
  info.struct_size = sizeof info;
  epd_group* const joined = group();
  const int code = joined == nullptr ? 0 : epd_group_get_info(joined, &info);
  if (code != EPD_OK) return {client::CodeFromNumber(code), "the group was closed"};
  return {};
}

void JoinedGroup::Leave() {
  const client::MutexLock lock(mutex_);
  if (group_ == nullptr) return;
  epd_error error = {};
  error.struct_size = sizeof error;
  epd_leave(std::exchange(group_, nullptr), &error);  // A lost session has left already.
}

}  // namespace epd::program
