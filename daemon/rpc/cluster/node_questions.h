// Questions that a coordinator asks all nodes, for an operator who looks at the whole cluster.
#pragma once

#include <grpcpp/alarm.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "daemon/node/cluster_ports.h"
#include "daemon/node/node.h"
#include "proto/epd/v1/cluster.pb.h"

namespace epd {

// What this node says; `done` is called on the control thread, now or soon.
//   INVALID_ARGUMENT  the method is not one of "GetStatus", "GetFacts" (a NodeReport without claims), "ExplainLocal",
//                     "TraceLocal" and "ExamineLocal", or its request does not parse
void AnswerQuestion(Node& node, const std::string& method, const std::string& request,
                    std::function<void(const v1::ClusterAnswer&)> done);

// The open questions of a coordinator. Control thread.
class NodeQuestions {
 public:
  explicit NodeQuestions(Node& node) : node_(node) {}

  // `asked` are the nodes that the caller sends the question to, under the number that is
  // returned; this node answers by itself. `done` gets every node that is known, within
  // kAskPatience.
  uint64_t Begin(const v1::AskNodesRequest& request, const std::set<NodeId>& asked, OnAsked done);
  void Take(const NodeId& node, const v1::ClusterAnswer& answer);

 private:
  struct Open {
    std::set<NodeId> awaited;
    std::map<NodeId, v1::ClusterAnswer> answers;
    OnAsked done;
    std::unique_ptr<grpc::Alarm> alarm;
  };

  void End(uint64_t number);

  Node& node_;
  uint64_t next_ = 1;
  std::map<uint64_t, Open> open_;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
};

}  // namespace epd
