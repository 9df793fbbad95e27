// epd.v1.Node: one line per RPC, which asks first whether its caller may (Refused). Most answer with Fill() of their request's type (node_answers.h);
// what is asked of all nodes is in cluster_answers.cc, orders are in group_orders.cc and
// replace.cc.
#pragma once

#include <grpcpp/support/server_callback.h>

#include "daemon/doctor/doctor_process.h"
#include "daemon/node/node.h"
#include "daemon/rpc/answer.h"
#include "daemon/rpc/caller_gate.h"
#include "daemon/rpc/node_api/group_watchers.h"
#include "daemon/rpc/node_api/node_answers.h"
#include "proto/epd/v1/node.grpc.pb.h"

namespace epd {

class NodeService final : public v1::Node::CallbackService {
 public:
  // All outlive this.
  NodeService(Node& node, GroupWatchers& watchers, const CallerGate& gate)
      : node_(node),
        watchers_(watchers),
        gate_(gate),
        cuda_doctor_(node.loop(), node.settings().worker, UnknownCuda()),
        port_doctor_(node.loop(), node.settings().worker, UnknownPorts()) {}

  // Answers what is still open. Control thread, after its loop has ended.
  void FinishAll() {
    cuda_doctor_.FinishAll();
    port_doctor_.FinishAll();
  }

  using Context = grpc::CallbackServerContext;
  using Unary = grpc::ServerUnaryReactor;

  // ---- what this node knows; the first six with fresh figures of the workers ----
  Unary* GetStatus(Context* context, const v1::GetStatusRequest* request,
                   v1::GetStatusResponse* response) override {
    return TellFresh(context, request, response);
  }
  Unary* GetMemory(Context* context, const v1::GetMemoryRequest* request,
                   v1::GetMemoryResponse* response) override {
    return TellFresh(context, request, response);
  }
  Unary* GetFigures(Context* context, const v1::GetFiguresRequest* request,
                    v1::GetFiguresResponse* response) override {
    return TellFresh(context, request, response);
  }
  Unary* ListGroups(Context* context, const v1::ListGroupsRequest* request,
                    v1::ListGroupsResponse* response) override {
    return TellFresh(context, request, response);
  }
  Unary* ListRanks(Context* context, const v1::ListRanksRequest* request,
                   v1::ListRanksResponse* response) override {
    return TellFresh(context, request, response);
  }
  Unary* ListSessions(Context* context, const v1::ListSessionsRequest* request,
                      v1::ListSessionsResponse* response) override {
    return TellFresh(context, request, response);
  }
  Unary* GetConfig(Context* context, const v1::GetConfigRequest* request,
                   v1::GetConfigResponse* response) override {
    return Tell(context, request, response);
  }
  Unary* PlanMemory(Context* context, const v1::PlanMemoryRequest* request,
                    v1::PlanMemoryResponse* response) override {
    return TellFresh(context, request, response);
  }
  Unary* GetDoctor(Context* context, const v1::GetDoctorRequest* request,
                   v1::GetDoctorResponse* response) override;
  grpc::ServerWriteReactor<v1::WatchGroupResponse>* WatchGroup(
      Context* context, const v1::WatchGroupRequest* request) override {
    using Stream = grpc::ServerWriteReactor<v1::WatchGroupResponse>;
    if (Stream* refused = Refused<Stream>(context, *request)) return refused;
    return watchers_.Watch(*request, gate_.callers().Describe(*context));
  }

  // ---- what all nodes know together ----
  Unary* ListNodes(Context* context, const v1::ListNodesRequest* request,
                   v1::ListNodesResponse* response) override;
  Unary* ExplainGroup(Context* context, const v1::ExplainGroupRequest* request,
                      v1::ExplainGroupResponse* response) override;

  Unary* GetTrace(Context* context, const v1::GetTraceRequest* request,
                  v1::GetTraceResponse* response) override;

  Unary* ExamineNodes(Context* context, const v1::ExamineNodesRequest* request,
                      v1::ExamineNodesResponse* response) override;

  // ---- orders ----
  Unary* CreateGroup(Context* context, const v1::CreateGroupRequest* request,
                     v1::CreateGroupResponse* response) override;
  Unary* DrainGroup(Context* context, const v1::DrainGroupRequest* request,
                    v1::DrainGroupResponse* response) override;
  Unary* CloseGroup(Context* context, const v1::CloseGroupRequest* request,
                    v1::CloseGroupResponse* response) override;
  Unary* Replace(Context* context, const v1::ReplaceRequest* request,
                 v1::ReplaceResponse* response) override;

 private:
  // get_doctor.cc
  static v1::Finding UnknownCuda();
  static v1::Finding UnknownPorts();
  // What the nodes say of themselves and each other; later, on the control thread.
  void DiagnoseNodes(const DoctorProcess::Done& done);

  // Null: the caller may.
  template <typename Reactor = Unary, typename Request>
  Reactor* Refused(Context* context, const Request&) {
    const absl::Status admitted = gate_.Admit(MethodOf<Request>("Node"), *context);
    return admitted.ok() ? nullptr : new RefusedCall<Reactor>(ToGrpc(admitted));
  }
  template <typename Request, typename Response>
  Unary* Tell(Context* context, const Request* request, Response* response) {
    if (Unary* refused = Refused(context, *request)) return refused;
    return Answer(context, node_,
                  [this, request, response] { return Fill(node_, *request, *response); });
  }
  template <typename Request, typename Response>
  Unary* TellFresh(Context* context, const Request* request, Response* response) {
    if (Unary* refused = Refused(context, *request)) return refused;
    return AnswerWithFigures(
        context, node_, [this, request, response] { return Fill(node_, *request, *response); });
  }

  Node& node_;
  GroupWatchers& watchers_;
  const CallerGate& gate_;
  DoctorProcess cuda_doctor_;
  DoctorProcess port_doctor_;
};

}  // namespace epd
