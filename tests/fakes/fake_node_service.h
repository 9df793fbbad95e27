// A node's epd without an epd: answers the Node and Health services with what the test put there.
#pragma once

#include <grpcpp/server.h>

#include <map>
#include <memory>
#include <string>

#include "proto/epd/v1/node.grpc.pb.h"
#include "proto/grpc/health/v1/health.grpc.pb.h"

namespace epd::testing {

// Set the fields before the first call; they are not guarded.
class FakeNodeService : public epd::v1::Node::Service {
 public:
  // Listens on `grpc_socket` until it is destroyed.
  explicit FakeNodeService(const std::string& grpc_socket);
  ~FakeNodeService() override;

  epd::v1::GetStatusResponse status;
  epd::v1::ListGroupsResponse groups;
  epd::v1::ListSessionsResponse sessions;
  epd::v1::ListRanksResponse ranks;
  epd::v1::GetMemoryResponse memory;
  epd::v1::PlanMemoryResponse plan;
  epd::v1::GetFiguresResponse figures;
  epd::v1::GetDoctorResponse doctor;
  epd::v1::GetConfigResponse config;
  std::map<std::string, bool> serving;  // By health service; others are NOT_FOUND.

  grpc::Status failure;  // If not OK, every call of Node answers it.
  bool hangs = false;    // Every call of Node waits until the caller gives up.

  // The last mutation.
  epd::v1::DrainGroupRequest drain_request;
  epd::v1::CloseGroupRequest close_request;
  epd::v1::CreateGroupRequest create_request;

 private:
  class HealthService;

  grpc::Status GetStatus(grpc::ServerContext*, const epd::v1::GetStatusRequest*,
                         epd::v1::GetStatusResponse*) override;
  grpc::Status ListGroups(grpc::ServerContext*, const epd::v1::ListGroupsRequest*,
                          epd::v1::ListGroupsResponse*) override;
  grpc::Status ListSessions(grpc::ServerContext*, const epd::v1::ListSessionsRequest*,
                            epd::v1::ListSessionsResponse*) override;
  grpc::Status ListRanks(grpc::ServerContext*, const epd::v1::ListRanksRequest*,
                         epd::v1::ListRanksResponse*) override;
  grpc::Status GetMemory(grpc::ServerContext*, const epd::v1::GetMemoryRequest*,
                         epd::v1::GetMemoryResponse*) override;
  grpc::Status PlanMemory(grpc::ServerContext*, const epd::v1::PlanMemoryRequest*,
                          epd::v1::PlanMemoryResponse*) override;
  grpc::Status GetFigures(grpc::ServerContext*, const epd::v1::GetFiguresRequest*,
                          epd::v1::GetFiguresResponse*) override;
  grpc::Status GetDoctor(grpc::ServerContext*, const epd::v1::GetDoctorRequest*,
                         epd::v1::GetDoctorResponse*) override;
  grpc::Status GetConfig(grpc::ServerContext*, const epd::v1::GetConfigRequest*,
                         epd::v1::GetConfigResponse*) override;
  grpc::Status CreateGroup(grpc::ServerContext*, const epd::v1::CreateGroupRequest*,
                           epd::v1::CreateGroupResponse*) override;
  grpc::Status DrainGroup(grpc::ServerContext*, const epd::v1::DrainGroupRequest*,
                          epd::v1::DrainGroupResponse*) override;
  grpc::Status CloseGroup(grpc::ServerContext*, const epd::v1::CloseGroupRequest*,
                          epd::v1::CloseGroupResponse*) override;

  // What every call does first.
  grpc::Status Begin(grpc::ServerContext* context) const;

  std::unique_ptr<HealthService> health_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace epd::testing
