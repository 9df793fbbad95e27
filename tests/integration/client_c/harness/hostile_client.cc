#include "tests/integration/client_c/harness/hostile_client.h"

#include <unistd.h>

#include <variant>

#include "client/c/epd_client.h"

namespace epd::testing {
namespace {

std::chrono::steady_clock::time_point Deadline() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(20);
}

}  // namespace

std::string HostileClient::Attach(const std::string& path) {
  const auto deadline = Deadline();
  if (client::Status s = client::AttachSocket::Connect(path, deadline, &socket_); !s.ok())
    return s.message;
  client::Attach attach = client::MakeAttach("hostile");
  attach.features = features_;
  if (client::Status s = socket_.Send(client::EncodeClientMessage(attach)); !s.ok())
    return s.message;
  if (client::Status s = socket_.Receive(deadline, &attached_); !s.ok()) return s.message;
  if (attached_.fds.size() != 2) return "Attached came with other descriptors";
  return client::Mapping::Map(attached_.fds[0].get(), layout().bytes(), /*writable=*/true,
                              &mapping_)
      .message;
}

std::string HostileClient::Join(bool worker_executor, const std::string& name) {
  client::Join join;
  join.request_id = 1;
  join.spec.name = name;
  join.spec.num_ranks = 1;
  join.spec.num_experts = 2;
  join.spec.max_tokens_per_rank = 8;
  join.spec.recv_capacity_per_rank = 16;
  join.spec.hidden = 16;
  join.spec.top_k = 2;
  join.spec.max_token_dtype = EPD_DTYPE_FLOAT32;
  join.spec.executor = worker_executor ? client::Executor::kWorker : client::Executor::kClient;
  join.ranks = {0};
  if (client::Status s = socket_.Send(client::EncodeClientMessage(join)); !s.ok()) return s.message;
  client::AttachSocket::Datagram datagram;
  if (client::Status s = socket_.Receive(Deadline(), &datagram); !s.ok()) return s.message;
  client::ServerMessage message;
  if (client::Status s = client::DecodeServerMessage(datagram.bytes, &message); !s.ok())
    return s.message;
  const auto* joined = std::get_if<client::Joined>(&message);
  if (joined == nullptr)
    return "the join was answered with message " + std::to_string(message.index());
  joined_ = *joined;
  return "";
}

void HostileClient::Ring() const {
  for (uint32_t group = 0; group < layout().armed().count; ++group)
    slots().armed(group).store(~uint64_t{0});
  const uint64_t one = 1;
  // A full counter has woken the worker already.
  [[maybe_unused]] const ssize_t written = write(attached_.fds[1].get(), &one, sizeof one);
}

}  // namespace epd::testing
