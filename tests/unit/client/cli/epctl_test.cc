// Goal: a command line against a node gives the report on one stream, the complaint on the other,
// and the exit code that --help promises.
#include "client/cli/epctl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "tests/fakes/fake_node_service.h"

namespace epd::cli {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

// Gives up root's power over file modes, in a death test's child.
void DropCapabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2]{};
  if (syscall(SYS_capset, &header, none) != 0) _exit(99);
}

class EpctlTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = "/tmp/epd-ctl-XXXXXX";  // A socket path is at most 107 bytes.
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    node_.reset();
    std::filesystem::remove_all(folder_);
  }

  // A healthy node with one group, on the node's own socket.
  testing::FakeNodeService& StartNode() {
    node_ = std::make_unique<testing::FakeNodeService>(folder_ + "/epd-grpc.sock");
    node_->status.set_node("n1");
    node_->status.set_version("0.1.0");
    node_->status.set_health(epd::v1::HEALTH_OK);
    node_->status.set_min_protocol_version(1);
    node_->status.set_max_protocol_version(1);
    auto& group = *node_->groups.add_groups();
    group.mutable_spec()->set_name("train");
    group.set_state(epd::v1::GROUP_STATE_READY);
    *node_->figures.add_groups() = group;
    node_->ranks.add_ranks()->set_group("train");
    node_->sessions.add_sessions()->set_session_id(77);
    node_->memory.add_regions()->set_owner("outcome records");
    node_->serving = {{"", true}, {"epd.v1.Node", true}, {"epd.group/train", true}};
    return *node_;
  }

  ExitCode Run(const std::vector<std::string>& args, bool is_tty = false) {
    out_.str("");
    err_.str("");
    const SearchContext search{
        .getenv = [](const char*) { return nullptr; }, .uid = getuid(), .node_dir = folder_};
    const Terminal terminal{
        .out = out_,
        .err = err_,
        .is_tty = is_tty,
        .sleep = [this](absl::Duration interval) { slept_.push_back(interval); },
        .wait_for_key =
            [this](absl::Duration) {
              const char key = keys_.empty() ? 'q' : keys_[0];
              keys_ = keys_.empty() ? "" : keys_.substr(1);
              return key;
            }};
    return RunEpctl(args, search, terminal);
  }
  std::string out() const { return out_.str(); }
  std::string err() const { return err_.str(); }

  std::string folder_;
  std::unique_ptr<testing::FakeNodeService> node_;
  std::ostringstream out_;
  std::ostringstream err_;
  std::vector<absl::Duration> slept_;
  std::string keys_;  // Pressed in turn while top waits; then 'q'.
};

TEST_F(EpctlTest, WithoutACommandItShowsTheStatusAndWhatToAskNext) {
  EXPECT_EQ(Run({}), ExitCode::kCannotConnect);
  EXPECT_THAT(out(), HasSubstr("Next:\n  epctl doctor"));
  StartNode();
  EXPECT_EQ(Run({}), ExitCode::kOk) << err();
  EXPECT_THAT(out(), AllOf(HasSubstr("n1"), HasSubstr("epctl --help")));
  EXPECT_EQ(Run({"-o", "json"}), ExitCode::kOk);
  EXPECT_THAT(out(), AllOf(HasSubstr("\"node\""), Not(HasSubstr("Next:"))));
}

TEST_F(EpctlTest, ErrorsAreExplainedWithoutADaemon) {
  EXPECT_EQ(Run({"explain", "epd-1302"}), ExitCode::kOk) << err();
  EXPECT_THAT(out(), AllOf(HasSubstr("EPD-1302 UNAVAILABLE"), HasSubstr("do:")));
  EXPECT_EQ(Run({"explain", "UNAVAILABLE", "-o", "json"}), ExitCode::kOk);
  EXPECT_THAT(out(), AllOf(HasSubstr("EPD-0014"), HasSubstr("EPD-1302")));
  EXPECT_EQ(Run({"explain", "EPD-9999"}), ExitCode::kUsage);
  EXPECT_THAT(err(), HasSubstr("got 'EPD-9999'"));
}

TEST_F(EpctlTest, EveryReadingCommandPrintsItsReportAndEndsWithZero) {
  StartNode();
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"status"}, "n1"},
      {{"groups"}, "train"},
      {{"top", "--once"}, "train"},
      {{"groups", "train"}, "group:"},
      {{"sessions"}, "77"},
      {{"ranks"}, "train"},
      {{"memory"}, "outcome records"},
      {{"health"}, "(node)"},
      {{"health", "train"}, "serving"},
      {{"config"}, "SETTING"},
      {{"version"}, "epd:    0.1.0"}};
  for (const auto& [args, expected] : cases) {
    EXPECT_EQ(Run(args), ExitCode::kOk) << args[0] << ": " << err();
    EXPECT_THAT(out(), HasSubstr(expected)) << args[0];
    EXPECT_THAT(err(), IsEmpty()) << args[0];
  }
}

TEST_F(EpctlTest, TheExitCodeSaysHowTheNodeIs) {
  auto& node = StartNode();
  node.status.set_health(epd::v1::HEALTH_DEGRADED);
  EXPECT_EQ(Run({"status"}), ExitCode::kDegraded);
  EXPECT_EQ(Run({"health"}), ExitCode::kDegraded);
  node.status.set_health(epd::v1::HEALTH_UNHEALTHY);
  EXPECT_EQ(Run({"status"}), ExitCode::kUnhealthy);
  EXPECT_EQ(Run({"health"}), ExitCode::kUnhealthy);
}

TEST_F(EpctlTest, AGroupThatDoesNotServeDegradesTheNodeAndIsUnhealthyItself) {
  StartNode().serving["epd.group/train"] = false;
  EXPECT_EQ(Run({"health"}), ExitCode::kDegraded);
  EXPECT_THAT(out(), HasSubstr("not-serving"));
  EXPECT_EQ(Run({"health", "train"}), ExitCode::kUnhealthy);
}

TEST_F(EpctlTest, TheHealthOfEachTenantIsItsOwnAndThatOfTheNodeLooksAtNone) {
  auto& node = StartNode();
  node.groups.mutable_groups(0)->mutable_spec()->set_tenant("a");
  *node.groups.add_groups() = node.groups.groups(0);
  node.groups.mutable_groups(1)->mutable_spec()->set_tenant("b");
  node.serving["epd.group/train/a"] = true;
  node.serving["epd.group/train/b"] = false;
  EXPECT_EQ(Run({"health"}), ExitCode::kDegraded);
  EXPECT_THAT(out(), AllOf(ContainsRegex("epd.group/train/a +serving"),
                           ContainsRegex("epd.group/train/b +not-serving")));
  EXPECT_EQ(Run({"health", "train/a"}), ExitCode::kOk);
  EXPECT_EQ(Run({"health", "--node"}), ExitCode::kOk);
  node.serving[""] = false;
  EXPECT_EQ(Run({"health", "--node"}), ExitCode::kUnhealthy);
}

TEST_F(EpctlTest, AWrongCommandLineIsUsage) {
  EXPECT_EQ(Run({"statsu"}), ExitCode::kUsage);
  EXPECT_THAT(out(), IsEmpty());
  EXPECT_THAT(err(), HasSubstr("epctl --help"));
  EXPECT_EQ(Run({"--help"}), ExitCode::kOk);
  EXPECT_THAT(out(), HasSubstr("Exit codes"));
}

TEST_F(EpctlTest, AnUnknownGroupIsUsage) {
  StartNode();
  EXPECT_EQ(Run({"ranks", "tarin"}), ExitCode::kUsage);
  EXPECT_THAT(err(), HasSubstr("no group 'tarin'"));
  EXPECT_EQ(Run({"health", "tarin"}), ExitCode::kUsage);
}

TEST_F(EpctlTest, WithoutADaemonItSaysWhereItLookedAndWhatToDo) {
  EXPECT_EQ(Run({"status"}), ExitCode::kCannotConnect);
  EXPECT_THAT(err(), AllOf(HasSubstr(folder_ + "/epd-grpc.sock"), HasSubstr("no such socket"),
                           HasSubstr("Start one")));
}

TEST_F(EpctlTest, AnAddressWhereNobodyListensCannotBeConnectedTo) {
  EXPECT_EQ(Run({"status", "--address", "127.0.0.1:1"}), ExitCode::kCannotConnect);
  EXPECT_THAT(err(), HasSubstr("127.0.0.1:1"));
}

TEST_F(EpctlTest, AFailedCallHasTheCodeOfItsKind) {
  auto& node = StartNode();
  const std::vector<std::pair<grpc::StatusCode, ExitCode>> cases = {
      {grpc::StatusCode::UNAVAILABLE, ExitCode::kCannotConnect},
      {grpc::StatusCode::UNIMPLEMENTED, ExitCode::kVersion},
      {grpc::StatusCode::PERMISSION_DENIED, ExitCode::kDenied},
      {grpc::StatusCode::DEADLINE_EXCEEDED, ExitCode::kDeadline},
      {grpc::StatusCode::ABORTED, ExitCode::kUnhealthy},
      {grpc::StatusCode::ALREADY_EXISTS, ExitCode::kUsage},
      {grpc::StatusCode::INTERNAL, ExitCode::kUnhealthy}};
  for (const auto& [code, expected] : cases) {
    node.failure = grpc::Status(code, "because of this");
    for (const char* command : {"drain", "close", "ranks"}) {
      EXPECT_EQ(Run({command, "train"}), expected) << command << " " << code;
      EXPECT_THAT(err(), HasSubstr("because of this"));
    }
  }
}

TEST_F(EpctlTest, ADaemonThatDoesNotAnswerIsADeadline) {
  StartNode().hangs = true;
  EXPECT_EQ(Run({"status", "--timeout", "50ms"}), ExitCode::kDeadline);
  EXPECT_THAT(err(), HasSubstr("no answer within 50ms"));
}

TEST_F(EpctlTest, ASocketThatThisUserMayNotUseIsDenied) {
  StartNode();
  ASSERT_EQ(chmod((folder_ + "/epd-grpc.sock").c_str(), 0), 0);
  EXPECT_EXIT(
      {
        DropCapabilities();
        _exit(static_cast<int>(Run({"status"})));
      },
      ::testing::ExitedWithCode(static_cast<int>(ExitCode::kDenied)), "");
}

TEST_F(EpctlTest, VersionsWithoutAnOverlapAreNamed) {
  auto& node = StartNode();
  node.status.set_min_protocol_version(5);
  node.status.set_max_protocol_version(6);
  node.status.set_version("9.0");
  EXPECT_EQ(Run({"version"}), ExitCode::kVersion);
  EXPECT_THAT(err(), AllOf(HasSubstr("speaks 1"), HasSubstr("epd 9.0 speaks 5 to 6"),
                           HasSubstr("upgrade epctl")));
}

TEST_F(EpctlTest, VersionAloneStillSaysItsOwn) {
  EXPECT_EQ(Run({"version"}), ExitCode::kCannotConnect);
  EXPECT_THAT(out(), StartsWith("epctl:  0.1.0"));
}

TEST_F(EpctlTest, DoctorWorksWithoutADaemonAndSaysSo) {
  EXPECT_EQ(Run({"doctor"}), ExitCode::kCannotConnect);
  EXPECT_THAT(out(), AllOf(HasSubstr("no epd answers"), HasSubstr("limit: open files")));
}

TEST_F(EpctlTest, DoctorAddsWhatTheDaemonFoundAndIsDegradedByAProblem) {
  auto& finding = *StartNode().doctor.add_findings();
  finding.set_what("libnccl");
  finding.set_found("not found");
  finding.set_fix("run deploy/setup");
  EXPECT_EQ(Run({"doctor"}), ExitCode::kDegraded);
  EXPECT_THAT(out(), AllOf(HasSubstr("libnccl"), HasSubstr("run deploy/setup")));
}

TEST_F(EpctlTest, DrainPassesItsDeadlineAndEpochOn) {
  auto& node = StartNode();
  EXPECT_EQ(Run({"drain", "train", "--deadline", "1500ms", "--epoch", "4"}), ExitCode::kOk);
  EXPECT_EQ(node.drain_request.name(), "train");
  EXPECT_EQ(node.drain_request.epoch(), 4u);
  EXPECT_EQ(node.drain_request.deadline().seconds(), 1);
  EXPECT_EQ(node.drain_request.deadline().nanos(), 500'000'000);
  const std::string first_id = node.drain_request.request_id();
  EXPECT_EQ(Run({"close", "train"}), ExitCode::kOk);
  EXPECT_NE(node.close_request.request_id(), first_id);
}

TEST_F(EpctlTest, CreatePassesTheWholeSpecOn) {
  auto& node = StartNode();
  EXPECT_EQ(Run({"create", "new", "--ranks=4", "--experts=8", "--max-tokens-per-rank=512",
                 "--top-k=2", "--recv-capacity-per-rank=1024", "--hidden=2048", "--dtype=float16",
                 "--executor=worker", "--drop-on-overflow"}),
            ExitCode::kOk)
      << err();
  const epd::v1::GroupSpec& spec = node.create_request.spec();
  EXPECT_EQ(spec.name(), "new");
  EXPECT_EQ(spec.num_ranks(), 4u);
  EXPECT_EQ(spec.num_experts(), 8u);
  EXPECT_EQ(spec.recv_capacity_per_rank(), 1024u);
  EXPECT_EQ(spec.max_token_dtype(), epd::v1::DTYPE_FLOAT16);
  EXPECT_EQ(spec.executor(), epd::v1::EXECUTOR_WORKER);
  EXPECT_TRUE(spec.drop_on_overflow());
  EXPECT_THAT(out(), HasSubstr("forming"));
}

TEST_F(EpctlTest, JsonOfAFailureIsAnErrorReport) {
  EXPECT_EQ(Run({"status", "-o", "json"}), ExitCode::kCannotConnect);
  EXPECT_THAT(out(), AllOf(HasSubstr("\"exit_code\": 3"), HasSubstr("no epd found")));
}

TEST_F(EpctlTest, WatchRepeatsAndEndsWithTheLastCode) {
  StartNode();
  EXPECT_EQ(Run({"status", "--watch=3s", "--count=2"}), ExitCode::kOk);
  EXPECT_EQ(slept_, std::vector<absl::Duration>{absl::Seconds(3)});
  EXPECT_NE(out().find("node:", out().find("node:") + 1), std::string::npos);
  EXPECT_THAT(out(), Not(HasSubstr("\033")));
  Run({"status", "--watch", "--count=1"}, /*is_tty=*/true);
  EXPECT_THAT(out(), StartsWith("\033[H\033[2J"));
  Run({"status", "--watch", "--count=2", "-o", "json"});
  const std::string lines = out();
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 2);
}

TEST_F(EpctlTest, TopChangesItsOrderByAKeyAndEndsByOne) {
  auto& figures = StartNode().figures;
  figures.mutable_groups(0)->set_num_operations(5);
  auto& other = *figures.add_groups();
  other.set_group_id(2);
  other.mutable_spec()->set_name("a_slow_one");
  keys_ = "n";
  EXPECT_EQ(Run({"top"}), ExitCode::kOk);
  const size_t second = out().find("every", out().find("every") + 1);
  ASSERT_NE(second, std::string::npos);
  EXPECT_EQ(out().find("every", second + 1), std::string::npos) << "q ends it";
  EXPECT_LT(out().find("train"), out().find("a_slow_one")) << "by operations";
  EXPECT_LT(out().find("a_slow_one", second), out().find("train", second)) << "by name";
}

TEST_F(EpctlTest, WatchOutlivesTheDaemon) {
  StartNode();
  Run({"status", "--watch", "--count=1"});
  node_.reset();
  EXPECT_EQ(Run({"status", "--watch", "--count=2"}), ExitCode::kCannotConnect);
  EXPECT_EQ(slept_.size(), 1u);
}

}  // namespace
}  // namespace epd::cli
