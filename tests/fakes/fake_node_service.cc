#include "tests/fakes/fake_node_service.h"

#include <grpcpp/server_builder.h>

#include <chrono>
#include <stdexcept>
#include <thread>

namespace epd::testing {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// Copies the groups, ranks or nothing that the request's name selects; an unknown name is
// NOT_FOUND.
template <typename Items, typename NameOf>
grpc::Status Select(const Items& items, const std::string& name, NameOf name_of, Items* selected) {
  for (const auto& item : items) {
    if (name.empty() || name_of(item) == name) *selected->Add() = item;
  }
  if (!name.empty() && selected->empty())
    return {grpc::StatusCode::NOT_FOUND, "no group '" + name + "'"};
  return grpc::Status::OK;
}

}  // namespace

class FakeNodeService::HealthService : public grpc::health::v1::Health::Service {
 public:
  explicit HealthService(const std::map<std::string, bool>& serving) : serving_(serving) {}

  grpc::Status Check(grpc::ServerContext*, const HealthCheckRequest* request,
                     HealthCheckResponse* response) override {
    const auto found = serving_.find(request->service());
    if (found == serving_.end()) {
      return {grpc::StatusCode::NOT_FOUND, "no service '" + request->service() + "'"};
    }
    response->set_status(found->second ? HealthCheckResponse::SERVING
                                       : HealthCheckResponse::NOT_SERVING);
    return grpc::Status::OK;
  }

 private:
  const std::map<std::string, bool>& serving_;
};

FakeNodeService::FakeNodeService(const std::string& grpc_socket)
    : health_(std::make_unique<HealthService>(serving)) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix:" + grpc_socket, grpc::InsecureServerCredentials());
  builder.RegisterService(this);
  builder.RegisterService(health_.get());
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) throw std::runtime_error("cannot listen on " + grpc_socket);
}

FakeNodeService::~FakeNodeService() { server_->Shutdown(std::chrono::system_clock::now()); }

grpc::Status FakeNodeService::Begin(grpc::ServerContext* context) const {
  while (hangs && !context->IsCancelled())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return failure;
}

grpc::Status FakeNodeService::GetStatus(grpc::ServerContext* context,
                                        const epd::v1::GetStatusRequest*,
                                        epd::v1::GetStatusResponse* response) {
  *response = status;
  return Begin(context);
}

grpc::Status FakeNodeService::ListGroups(grpc::ServerContext* context,
                                         const epd::v1::ListGroupsRequest* request,
                                         epd::v1::ListGroupsResponse* response) {
  const grpc::Status begun = Begin(context);
  if (!begun.ok()) return begun;
  return Select(
      groups.groups(), request->name(), [](const auto& group) { return group.spec().name(); },
      response->mutable_groups());
}

grpc::Status FakeNodeService::GetFigures(grpc::ServerContext* context,
                                         const epd::v1::GetFiguresRequest*,
                                         epd::v1::GetFiguresResponse* response) {
  *response = figures;
  return Begin(context);
}

grpc::Status FakeNodeService::ListSessions(grpc::ServerContext* context,
                                           const epd::v1::ListSessionsRequest*,
                                           epd::v1::ListSessionsResponse* response) {
  *response = sessions;
  return Begin(context);
}

grpc::Status FakeNodeService::ListRanks(grpc::ServerContext* context,
                                        const epd::v1::ListRanksRequest* request,
                                        epd::v1::ListRanksResponse* response) {
  const grpc::Status begun = Begin(context);
  if (!begun.ok()) return begun;
  return Select(
      ranks.ranks(), request->group(), [](const auto& rank) { return rank.group(); },
      response->mutable_ranks());
}

grpc::Status FakeNodeService::GetMemory(grpc::ServerContext* context,
                                        const epd::v1::GetMemoryRequest*,
                                        epd::v1::GetMemoryResponse* response) {
  *response = memory;
  return Begin(context);
}

grpc::Status FakeNodeService::PlanMemory(grpc::ServerContext* context,
                                         const epd::v1::PlanMemoryRequest*,
                                         epd::v1::PlanMemoryResponse* response) {
  *response = plan;
  return Begin(context);
}

grpc::Status FakeNodeService::GetDoctor(grpc::ServerContext* context,
                                        const epd::v1::GetDoctorRequest*,
                                        epd::v1::GetDoctorResponse* response) {
  *response = doctor;
  return Begin(context);
}

grpc::Status FakeNodeService::GetConfig(grpc::ServerContext* context,
                                        const epd::v1::GetConfigRequest*,
                                        epd::v1::GetConfigResponse* response) {
  *response = config;
  return Begin(context);
}

grpc::Status FakeNodeService::CreateGroup(grpc::ServerContext* context,
                                          const epd::v1::CreateGroupRequest* request,
                                          epd::v1::CreateGroupResponse* response) {
  create_request = *request;
  *response->mutable_group()->mutable_spec() = request->spec();
  response->mutable_group()->set_state(epd::v1::GROUP_STATE_FORMING);
  return Begin(context);
}

grpc::Status FakeNodeService::DrainGroup(grpc::ServerContext* context,
                                         const epd::v1::DrainGroupRequest* request,
                                         epd::v1::DrainGroupResponse* response) {
  drain_request = *request;
  response->mutable_group()->mutable_spec()->set_name(request->name());
  response->mutable_group()->set_state(epd::v1::GROUP_STATE_CLOSED);
  return Begin(context);
}

grpc::Status FakeNodeService::CloseGroup(grpc::ServerContext* context,
                                         const epd::v1::CloseGroupRequest* request,
                                         epd::v1::CloseGroupResponse*) {
  close_request = *request;
  return Begin(context);
}

}  // namespace epd::testing
