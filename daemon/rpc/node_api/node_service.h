// epd.v1.Node: one line per RPC; each is implemented in the file of its name.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <memory>

#include "daemon/doctor/cuda_doctor_process.h"
#include "daemon/node/node.h"
#include "daemon/rpc/node_api/group_watchers.h"
#include "proto/epd/v1/node.grpc.pb.h"

namespace epd {

class NodeService final : public v1::Node::CallbackService {
 public:
  // Both outlive this.
  NodeService(Node& node, GroupWatchers& watchers)
      : node_(node),
        watchers_(watchers),
        cuda_doctor_(node.loop(), node.settings().worker, node.settings().nccl_library) {}

  // Answers what is still open. Control thread, after its loop has ended.
  void FinishAll() { cuda_doctor_.FinishAll(); }

  using Context = grpc::CallbackServerContext;
  using Unary = grpc::ServerUnaryReactor;

  Unary* GetStatus(Context* context, const v1::GetStatusRequest* request,
                   v1::GetStatusResponse* response) override;
  Unary* ListGroups(Context* context, const v1::ListGroupsRequest* request,
                    v1::ListGroupsResponse* response) override;
  Unary* ListSessions(Context* context, const v1::ListSessionsRequest* request,
                      v1::ListSessionsResponse* response) override;
  Unary* ListRanks(Context* context, const v1::ListRanksRequest* request,
                   v1::ListRanksResponse* response) override;
  Unary* GetMemory(Context* context, const v1::GetMemoryRequest* request,
                   v1::GetMemoryResponse* response) override;
  Unary* PlanMemory(Context* context, const v1::PlanMemoryRequest* request,
                    v1::PlanMemoryResponse* response) override;
  Unary* GetDoctor(Context* context, const v1::GetDoctorRequest* request,
                   v1::GetDoctorResponse* response) override;
  Unary* GetConfig(Context* context, const v1::GetConfigRequest* request,
                   v1::GetConfigResponse* response) override;
  Unary* ListNodes(Context* context, const v1::ListNodesRequest* request,
                   v1::ListNodesResponse* response) override;
  Unary* ExplainGroup(Context* context, const v1::ExplainGroupRequest* request,
                      v1::ExplainGroupResponse* response) override;
  Unary* CreateGroup(Context* context, const v1::CreateGroupRequest* request,
                     v1::CreateGroupResponse* response) override;
  grpc::ServerWriteReactor<v1::WatchGroupResponse>* WatchGroup(
      Context* context, const v1::WatchGroupRequest* request) override;
  Unary* DrainGroup(Context* context, const v1::DrainGroupRequest* request,
                    v1::DrainGroupResponse* response) override;
  Unary* CloseGroup(Context* context, const v1::CloseGroupRequest* request,
                    v1::CloseGroupResponse* response) override;

 private:
  Node& node_;
  GroupWatchers& watchers_;
  CudaDoctorProcess cuda_doctor_;
};

}  // namespace epd
