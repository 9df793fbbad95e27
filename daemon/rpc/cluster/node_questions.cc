#include "daemon/rpc/cluster/node_questions.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/codec/codec.h"
#include "daemon/core/duration_text.h"
#include "daemon/rpc/node_api/examine.h"
#include "daemon/rpc/node_api/explain.h"
#include "daemon/rpc/node_api/local_trace.h"
#include "daemon/rpc/node_api/node_answers.h"
#include "proto/epd/v1/cluster.pb.h"

namespace epd {
namespace {

v1::ClusterAnswer Packed(const absl::Status& status, const google::protobuf::MessageLite& message) {
  v1::ClusterAnswer answer;
  *answer.mutable_status() = ToProto(status);
  if (status.ok()) answer.set_response(message.SerializeAsString());
  return answer;
}

absl::Status Unanswered(bool lost, absl::Duration ago) {
  return absl::UnavailableError(absl::StrCat(lost ? "it is lost; " : "it did not answer in time; ",
                                             "last seen ", InMilliseconds(ago), " ago"));
}

// The report of a node without what it has: only who and where it is, and what time it is there.
v1::NodeReport FactsOf(const Node& node) {
  v1::NodeReport report;
  report.set_node(node.id().value);
  report.mutable_facts()->set_epd_version(node.identity().version);
  report.mutable_facts()->set_wall_clock_ms(absl::ToUnixMillis(absl::Now()));
  const Settings& settings = node.settings();
  report.set_address(settings.advertise.empty() ? settings.listen : settings.advertise);
  for (const auto& [name, entry] : node.workers()) {
    v1::ClusterWorkerReport& worker = *report.add_workers();
    worker.set_name(ToString(name));
    worker.set_wire_address(entry->supervisor.figures().ready.wire_address());
  }
  return report;
}

}  // namespace

void AnswerQuestion(Node& node, const std::string& method, const std::string& request,
                    std::function<void(const v1::ClusterAnswer&)> done) {
  if (method == "GetStatus") {
    return node.WithFreshFigures([&node, done = std::move(done)] {
      v1::GetStatusResponse response;
      const absl::Status status = Fill(node, v1::GetStatusRequest(), response);
      done(Packed(status, response));
    });
  }
  if (method == "GetFacts") return done(Packed(absl::OkStatus(), FactsOf(node)));
  if (v1::GetTraceRequest trace; method == "TraceLocal" && trace.ParseFromString(request)) {
    return TraceLocally(node, trace, [done = std::move(done)](const v1::LocalTrace& said) {
      done(Packed(absl::OkStatus(), said));
    });
  }
  if (v1::ExamineNodesRequest asked; method == "ExamineLocal" && asked.ParseFromString(request)) {
    return ExamineLocally(node, asked, [done = std::move(done)](const v1::NodeExamination& said) {
      done(Packed(absl::OkStatus(), said));
    });
  }
  v1::ExplainGroupRequest parsed;
  if (method == "ExplainLocal" && parsed.ParseFromString(request)) {
    return ExplainLocally(node, parsed.name(),
                          [done = std::move(done)](const v1::LocalExplanation& said) {
                            done(Packed(absl::OkStatus(), said));
                          });
  }
  done(Packed(absl::InvalidArgumentError(absl::StrCat(
                  "got the question '", method,
                  "', expected GetStatus, GetFacts, ExplainLocal, TraceLocal or ExamineLocal")),
              parsed));
}

uint64_t NodeQuestions::Begin(const v1::AskNodesRequest& request, const std::set<NodeId>& asked,
                              OnAsked done) {
  const uint64_t number = next_++;
  Open& open = open_[number];
  open.awaited = asked;
  open.awaited.insert(node_.id());
  open.done = std::move(done);
  open.alarm = std::make_unique<grpc::Alarm>();
  const std::weak_ptr<int> weak = alive_;
  open.alarm->Set(absl::ToChronoTime(absl::Now() + kAskPatience),
                  [this, weak, number, &loop = node_.loop()](bool) {
                    loop.Post([this, weak, number] {
                      if (!weak.expired()) End(number);
                    });
                  });
  AnswerQuestion(node_, request.method(), request.request(),
                 [this, weak, number](const v1::ClusterAnswer& answer) {
                   if (weak.expired()) return;
                   v1::ClusterAnswer own = answer;
                   own.set_question_id(number);
                   Take(node_.id(), own);
                 });
  return number;
}

void NodeQuestions::Take(const NodeId& node, const v1::ClusterAnswer& answer) {
  const auto it = open_.find(answer.question_id());
  if (it == open_.end() || it->second.awaited.erase(node) == 0) return;
  it->second.answers[node] = answer;
  if (it->second.awaited.empty()) End(answer.question_id());
}

void NodeQuestions::End(uint64_t number) {
  const auto it = open_.find(number);
  if (it == open_.end()) return;
  Open open = std::move(it->second);
  open_.erase(it);
  v1::AskNodesResponse response;
  response.set_coordinator(node_.id().value);
  const absl::Time now = MonotonicNow();
  std::set<NodeId> known;
  for (const NodeStatus& status : node_.coordination().rendezvous().Nodes()) {
    v1::AskNodesResponse::Node& out = *response.add_nodes();
    const absl::Duration ago = now - status.last_report;
    out.set_node(status.node.value);
    *out.mutable_last_seen() = ToProto(ago);
    const auto answer = open.answers.find(status.node);
    if (answer != open.answers.end()) {
      *out.mutable_status() = answer->second.status();
      out.set_response(answer->second.response());
    } else {
      *out.mutable_status() = ToProto(Unanswered(status.lost, ago));
    }
    known.insert(status.node);
  }
  open.done(std::move(response));
}

}  // namespace epd
