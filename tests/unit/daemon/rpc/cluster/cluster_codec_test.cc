// Goal: what one epd says about its groups is what the other one hears, to the last field.
#include "daemon/rpc/cluster/cluster_codec.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/epd/v1/limits.h"

namespace epd {
namespace {

using testing::HasSubstr;

GroupSpec Spec() {
  GroupSpec spec;
  spec.name = "g";
  spec.num_ranks = 2;
  spec.num_experts = 4;
  spec.max_tokens_per_rank = 8;
  spec.recv_capacity_per_rank = 16;
  spec.hidden = 32;
  spec.max_token_dtype = Dtype::kFloat32;
  return spec;
}

ProgramId Program(uint8_t fill) {
  ProgramId program;
  program.fill(fill);
  return program;
}

NodeReport FullReport() {
  NodeReport report;
  report.node = NodeId{"a"};
  report.incarnation = Incarnation(1);
  report.seq = 2;
  report.coordinator = Incarnation(3);
  report.max_epoch = Epoch(4);
  report.max_formation = Formation(5);
  report.workers = {{kCpuWorker, Incarnation(6), true, "p", "2.28", "10.0.0.2:7500"},
                    {WorkerName{3}, Incarnation(29), false, "q", "", "10.0.0.2:7502", "here:1",
                     "known", "killed"}};
  report.facts = {"0.1", 2, "2.28", "570", absl::ZeroDuration()};
  Claim& claim = report.claims.emplace_back();
  claim.session = SessionId(7);
  claim.request = RequestId(8);
  claim.host = "h";
  claim.pid = 9;
  claim.client_name = "c";
  claim.client_version = "v";
  claim.started = 30;
  claim.spec = Spec();
  claim.ranks = {Rank(1), Rank(0)};
  claim.workers = {WorkerName{3}, WorkerName{4}};
  claim.min_epoch = Epoch(10);
  claim.remaining = absl::Milliseconds(11);
  claim.proposed = GroupId(12);
  claim.granted_by = Incarnation(13);
  claim.group = GroupId(14);
  claim.joined = Formation(15);
  claim.drained = DrainRecord{Formation(16), {{Rank(1), Program(2), 17}}};
  claim.bases_of = Formation(18);
  claim.bases = {{Rank(0), Program(3), 19}};
  claim.fate = ClaimFate::kGone;
  claim.fate_cause = absl::UnavailableError("gone");
  GroupWork& work = report.work.emplace_back();
  work.group = GroupId(20);
  work.communicator = GroupId(25);
  work.worker = WorkerName{3};
  work.fenced = Epoch(21);
  work.id_epoch = Epoch(22);
  work.id_status = absl::InternalError("id");
  work.id = UniqueId("secret");
  work.init_epoch = Epoch(23);
  work.init_status = absl::AbortedError("init");
  work.init_sha256 = "digest";
  work.formation = Formation(24);
  work.phase = TenantPhase::kFailed;
  work.tenant_status = absl::ResourceExhaustedError("full");
  work.broken = Formation(24);
  work.broken_cause = absl::UnavailableError("a stream is lost");
  work.heard = Formation(23);
  Order& order = report.orders.emplace_back();
  order.request = RequestId(25);
  order.kind = OrderKind::kCreate;
  order.spec = Spec();
  order.proposed = GroupId(26);
  order.group = GroupId(27);
  order.name = "n";
  order.remaining = absl::Seconds(28);
  order.node_stops = true;
  return report;
}

TEST(ClusterCodecTest, ReportSurvivesTheWire) {
  const NodeReport sent = FullReport();
  const auto got = FromProto(ToProto(sent));
  ASSERT_TRUE(got.ok()) << got.status();
  // Every field is set above, so equal serialisations mean that none was dropped on either way.
  const auto timeless = [](v1::NodeReport message) {
    message.mutable_facts()->clear_wall_clock_ms();
    return message.SerializeAsString();
  };
  EXPECT_EQ(timeless(ToProto(*got)), timeless(ToProto(sent)));
  EXPECT_LT(absl::AbsDuration(got->facts.clock_offset), absl::Minutes(1));
  EXPECT_EQ(got->claims[0].spec, sent.claims[0].spec);
  EXPECT_EQ(got->claims[0].ranks, sent.claims[0].ranks);
  EXPECT_EQ(got->claims[0].workers, sent.claims[0].workers);
  EXPECT_EQ(got->work[0].worker, sent.work[0].worker);
  EXPECT_EQ(got->workers, sent.workers);
  EXPECT_EQ(got->claims[0].drained, sent.claims[0].drained);
  EXPECT_EQ(got->claims[0].bases, sent.claims[0].bases);
  EXPECT_EQ(got->claims[0].fate, ClaimFate::kGone);
  EXPECT_EQ(got->claims[0].remaining, sent.claims[0].remaining);
  EXPECT_EQ(got->work[0].id, sent.work[0].id);
  EXPECT_EQ(got->work[0].phase, TenantPhase::kFailed);
  EXPECT_EQ(got->work[0].fenced, Epoch(21));
  EXPECT_EQ(got->orders[0].kind, OrderKind::kCreate);
  EXPECT_EQ(got->max_formation, Formation(5));
}

TEST(ClusterCodecTest, EveryFieldOfAReportIsOnTheWire) {
  v1::NodeReport wire = ToProto(FullReport());
  wire.add_answers();  // These two are added by the link, not by control.
  wire.set_address("a:1");
  const auto all_set = [](const google::protobuf::Message& message) {
    std::vector<const google::protobuf::FieldDescriptor*> set;
    message.GetReflection()->ListFields(message, &set);
    return static_cast<int>(set.size()) == message.GetDescriptor()->field_count();
  };
  EXPECT_TRUE(all_set(wire));
  EXPECT_TRUE(all_set(wire.claims(0)));
  EXPECT_TRUE(all_set(wire.work(0)));
  EXPECT_TRUE(all_set(wire.orders(0)));
}

TEST(ClusterCodecTest, ViewSurvivesTheWire) {
  ClusterView view;
  view.coordinator = Incarnation(1);
  view.seq = 2;
  view.node = NodeId{"a"};
  view.node_incarnation = Incarnation(3);
  view.report_seq = 4;
  GroupView& group = view.groups.emplace_back();
  group.id = GroupId(5);
  group.spec = Spec();
  group.state = GroupState::kReforming;
  group.epoch = Epoch(6);
  group.formation = Formation(7);
  group.started = true;
  group.wait = true;
  group.cause = absl::AbortedError("cause");
  group.members = {{Rank(1), NodeId{"b"}, SessionId(8), 9, "h", 10, "c", "v", WorkerName{7}}};
  group.own_members_only = true;
  group.kept = true;
  group.dead = {{Rank(0), NodeId{"a"}, SessionId(11), 12, "i", 13, "d", "w", WorkerName{8}}};
  RankHolder rival = group.dead[0];
  rival.started = 31;
  group.rivals = {{rival, /*waits=*/true}};
  group.bases = {{Rank(1), Program(4), 14}};
  group.base_cause = absl::UnavailableError("base");
  group.id_maker = WorkerName{8};
  group.id_stays = true;
  group.id_known = true;
  group.unique_id = UniqueId("secret");
  group.no_id_reason = "none: x";
  group.workers = {
      {NodeId{"b"}, Incarnation(18), "10.0.0.3:7500", WorkerName{7}, "here:2", "known"}};
  group.node_workers = {WorkerName{7}, WorkerName{8}};
  view.claims = {{SessionId(15), RequestId(16), ClaimDisposition::kFailed, GroupId(17),
                  absl::AbortedError("claim")}};
  view.orders = {{RequestId(18), absl::NotFoundError("order"), GroupId(19)}};
  for (uint32_t protocol = kMinClusterProtocol; protocol <= kMaxClusterProtocol; ++protocol) {
    const v1::ClusterView sent = ToProto(view, protocol);
    EXPECT_EQ(sent.groups(0).members_size(), protocol < 2 ? 1 : 0)
        << "an old node reads no columns";
    const auto got = FromProto(sent);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(got->groups, view.groups);
    EXPECT_EQ(got->claims, view.claims);
    EXPECT_EQ(got->orders, view.orders);
    EXPECT_EQ(ToProto(*got, protocol).SerializeAsString(), sent.SerializeAsString());
  }
}

TEST(ClusterCodecTest, WhatIsEncodedOnceForAllNodesReadsLikeWhatIsEncodedForEach) {
  EncodedFormations formations;
  ClusterView view;
  GroupView& group = view.groups.emplace_back();
  group.spec = Spec();
  group.started = true;
  group.members = {{Rank(1), NodeId{"b"}, SessionId(8), 9, "h", 10, "c"}};
  group.bases = {{Rank(1), Program(4), 14}};
  group.workers = {{NodeId{"b"}, Incarnation(18), "10.0.0.3:7500"},
                   {NodeId{"c"}, Incarnation(19), "10.0.0.4:7500"}};
  const auto after_the_wire = [&] {
    v1::ClusterView read;
    EXPECT_TRUE(read.ParseFromString(ToProto(view, 2, &formations).SerializeAsString()));
    const auto got = FromProto(read);
    EXPECT_TRUE(got.ok()) << got.status();
    return got.ok() ? got->groups : std::vector<GroupView>();
  };
  EXPECT_EQ(after_the_wire(), view.groups);
  group.cause = absl::AbortedError("only this differs");
  EXPECT_EQ(after_the_wire(), view.groups);
  group.members = {{Rank(1), NodeId{"b"}, SessionId(9), 9, "h", 11, "c"}};
  EXPECT_EQ(after_the_wire(), view.groups);
  group.members = {};
  group.bases = {};
  group.workers = {};
  group.kept = true;
  EXPECT_EQ(after_the_wire(), view.groups);
}

// It has one worker on each node, and says which one that is.
TEST(ClusterCodecTest, TheRanksOfAnOlderCoordinatorAreServedByTheWorkerThatItNames) {
  ClusterView view;
  GroupView& group = view.groups.emplace_back();
  group.spec = Spec();
  group.members = {{Rank(1), NodeId{"b"}, SessionId(8), 9, "h", 10, "c"}};
  v1::ClusterView wire = ToProto(view, 2);
  wire.mutable_groups(0)->set_worker("cuda:2");
  wire.mutable_groups(0)->set_id_wanted(true);
  const auto got = FromProto(wire);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->groups[0].node_workers, std::vector<WorkerName>{WorkerName{2}});
  EXPECT_EQ(got->groups[0].id_maker, WorkerName{2});
  EXPECT_EQ(got->groups[0].members.items()[0].worker, WorkerName{2});
}

TEST(ClusterCodecTest, ColumnsThatMakeNoSenseAreRefused) {
  ClusterView view;
  view.groups.push_back({});
  view.groups[0].spec = Spec();
  view.groups[0].members = {{Rank(1), NodeId{"b"}, SessionId(8), 9, "h", 10, "c"}};
  v1::ClusterView wire = ToProto(view, 2);
  ASSERT_TRUE(FromProto(wire).ok()) << FromProto(wire).status();
  wire.mutable_groups(0)->mutable_member_columns()->add_pids(1);
  EXPECT_THAT(std::string(FromProto(wire).status().message()), HasSubstr("columns of"));
  wire = ToProto(view, 2);
  wire.mutable_groups(0)->mutable_member_columns()->set_hosts(0, 99);
  EXPECT_THAT(std::string(FromProto(wire).status().message()), HasSubstr("got text 99"));
  wire = ToProto(view, 2);
  wire.mutable_groups(0)->mutable_member_columns()->add_workers(0);
  EXPECT_THAT(std::string(FromProto(wire).status().message()),
              HasSubstr("member_columns.workers: got 'b'"));
}

// Each of them goes on to workers, in messages that have a limit.
TEST(ClusterCodecTest, TextsOfAnotherNodeAreCleanAndNoLongerThanAnythingShows) {
  const std::string text = "\x1b" + std::string(300'000, 'x');
  v1::NodeReport report = ToProto(FullReport());
  v1::ClusterClaim& claim = *report.mutable_claims(0);
  for (std::string* field : {claim.mutable_host(), claim.mutable_client_name(),
                             report.mutable_workers(0)->mutable_nccl_problem(),
                             report.mutable_workers(0)->mutable_down_because(),
                             report.mutable_workers(0)->mutable_wire_address()}) {
    *field = text;
  }
  const absl::StatusOr<NodeReport> taken = FromProto(report);
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(taken->claims[0].host, "?" + std::string(limits::kNameBytes - 1, 'x'));
  EXPECT_EQ(taken->claims[0].client_name.size(), limits::kNameBytes);
  EXPECT_EQ(taken->workers[0].nccl_problem.size(), limits::kErrorBytes);
  EXPECT_EQ(taken->workers[0].down_because.size(), limits::kErrorBytes);
  EXPECT_LE(taken->workers[0].wire_address.size(), 1000u);

  v1::ClusterView view;
  v1::ClusterGroup& group = *view.add_groups();
  *group.mutable_spec() = claim.spec();
  group.set_state(1);
  v1::ClusterMemberColumns& members = *group.mutable_member_columns();
  members.add_texts(text);
  members.add_ranks(0);
  members.add_sessions(1);
  members.add_arena_indices(0);
  members.add_pids(1);
  members.add_nodes(0);
  members.add_hosts(0);
  members.add_client_names(0);
  members.add_client_versions(0);
  const absl::StatusOr<ClusterView> seen = FromProto(view);
  ASSERT_TRUE(seen.ok()) << seen.status();
  EXPECT_EQ(seen->groups[0].members[0].client_name.size(), limits::kNameBytes);
}

TEST(ClusterCodecTest, ANameOrAnIdThatIsTooLongIsRefusedAndSaysSo) {
  v1::NodeReport report = ToProto(FullReport());
  report.set_node(std::string(limits::kNameBytes + 1, 'n'));
  EXPECT_THAT(std::string(FromProto(report).status().message()), HasSubstr("report.node"));
  report.set_node("line\nline");
  EXPECT_THAT(std::string(FromProto(report).status().message()), HasSubstr("report.node"));
  report = ToProto(FullReport());
  report.mutable_work(0)->set_unique_id(std::string(129, 'u'));
  EXPECT_THAT(std::string(FromProto(report).status().message()),
              HasSubstr("work.unique_id: got 129 bytes, expected at most 128"));
  v1::ClusterView view;
  *view.add_groups()->mutable_spec() = report.claims(0).spec();
  view.mutable_groups(0)->set_state(1);
  view.mutable_groups(0)->set_unique_id(std::string(129, 'u'));
  EXPECT_THAT(std::string(FromProto(view).status().message()), HasSubstr("group.unique_id"));
}

TEST(ClusterCodecTest, NonsenseFromAnotherNodeIsNamed) {
  v1::NodeReport nameless = ToProto(FullReport());
  nameless.clear_node();
  EXPECT_THAT(std::string(FromProto(nameless).status().message()), HasSubstr("report.node"));
  v1::NodeReport fate = ToProto(FullReport());
  fate.mutable_claims(0)->set_fate(static_cast<v1::ClaimFate>(9));
  EXPECT_THAT(std::string(FromProto(fate).status().message()),
              HasSubstr("claim.fate: got 9, expected 1 to 3"));
  v1::NodeReport program = ToProto(FullReport());
  program.mutable_claims(0)->mutable_bases(0)->set_program("short");
  EXPECT_THAT(std::string(FromProto(program).status().message()),
              HasSubstr("got 5 bytes, expected 16"));
  v1::NodeReport spec = ToProto(FullReport());
  spec.mutable_claims(0)->mutable_spec()->set_num_experts(0);
  EXPECT_THAT(std::string(FromProto(spec).status().message()), HasSubstr("num_experts"));
}

}  // namespace
}  // namespace epd
