// Goal: whoever configures epd gets what was written, or is told which line or flag is wrong and
// what would be right.
#include "daemon/node/settings/settings.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "daemon/node/settings/reload.h"
#include "daemon/node/settings/settings_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace epd {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

const MachineFacts kMachine = {"a7", "/run/epd", "/opt/epd/bin", uint64_t{8} << 30};

std::string ErrorOf(const std::vector<std::string>& args) {
  const absl::StatusOr<ParsedSettings> parsed = ParseSettings(args, kMachine);
  return parsed.ok() ? "" : std::string(parsed.status().message());
}

EffectiveSetting Find(const ParsedSettings& parsed, const std::string& name) {
  for (const EffectiveSetting& setting : parsed.effective) {
    if (setting.name == name) return setting;
  }
  ADD_FAILURE() << "no setting " << name;
  return {};
}

class ConfigFile {
 public:
  explicit ConfigFile(const std::string& text) {
    path_ = std::string(std::getenv("TEST_TMPDIR") ? std::getenv("TEST_TMPDIR") : "/tmp") +
            "/epd.conf." + std::to_string(getpid());
    std::ofstream(path_) << text;
  }
  ~ConfigFile() { unlink(path_.c_str()); }
  const std::string& path() const { return path_; }
  std::string flag() const { return "--config=" + path_; }

 private:
  std::string path_;
};

// epd, its worker and clients must find memory too, where a control group leaves little.
TEST(SettingsTest, TheDefaultOfStagingLeavesMemoryForOthers) {
  constexpr uint64_t kMib = uint64_t{1} << 20;
  EXPECT_EQ(DefaultStagingBytes(64 * 1024 * kMib), 16 * 1024 * kMib);
  EXPECT_EQ(DefaultStagingBytes(1024 * kMib), 256 * kMib);
  EXPECT_EQ(DefaultStagingBytes(256 * kMib), 64 * kMib);
  EXPECT_EQ(DefaultStagingBytes(160 * kMib), 16 * kMib);
  EXPECT_EQ(DefaultStagingBytes(128 * kMib), kMib);
  EXPECT_EQ(DefaultStagingBytes(0), kMib);
}

TEST(SettingsTest, DefaultsComeFromTheMachine) {
  const auto parsed = ParseSettings({}, kMachine);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const Settings& s = parsed->settings;
  EXPECT_EQ(s.socket, "/run/epd/epd.sock");
  EXPECT_EQ(s.grpc_socket, "/run/epd/epd-grpc.sock");
  EXPECT_EQ(s.node, "a7");
  EXPECT_EQ(s.worker, "/opt/epd/bin/epd-worker");
  EXPECT_EQ(s.staging_bytes, uint64_t{2} << 30);
  EXPECT_EQ(s.absent, absl::Minutes(10));
  EXPECT_EQ(s.idle_exit, absl::ZeroDuration());
}

TEST(SettingsTest, FlagWinsOverFileAndFileOverDefault) {
  const ConfigFile file("# comment\nspin = 1ms\nnode = from-file  # why\n\nstaging_bytes = 1GiB\n");
  const auto parsed = ParseSettings({"--node=from-flag", file.flag()}, kMachine);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->settings.spin, absl::Milliseconds(1));
  EXPECT_EQ(parsed->settings.node, "from-flag");
  EXPECT_EQ(parsed->settings.staging_bytes, uint64_t{1} << 30);
  EXPECT_EQ(Find(*parsed, "spin").origin, Origin::kFile);
  EXPECT_EQ(Find(*parsed, "node").origin, Origin::kFlag);
  EXPECT_EQ(Find(*parsed, "socket").origin, Origin::kDefault);
}

TEST(SettingsTest, FlagsTakeBothSpellingsAndASeparateValue) {
  const auto parsed =
      ParseSettings({"--log-level", "warn", "--idle_exit=5", "--worker-stuck=1m30s"}, kMachine);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->settings.log_level, "warn");
  EXPECT_EQ(parsed->settings.idle_exit, absl::Seconds(5));
  EXPECT_EQ(parsed->settings.worker_stuck, absl::Seconds(90));
}

TEST(SettingsTest, AnEmptyValueIsAValueAndTakesNotTheNextFlag) {
  const ConfigFile file("listen = 127.0.0.1:0\n");
  const auto parsed = ParseSettings({file.flag(), "--listen=", "--spin=1ms"}, kMachine);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->settings.listen, "");
  EXPECT_EQ(Find(*parsed, "listen").origin, Origin::kFlag);
  EXPECT_EQ(parsed->settings.spin, absl::Milliseconds(1));
}

TEST(SettingsTest, ListsOfUsersAreNumbers) {
  const auto parsed = ParseSettings({"--attach_uids=1000,1001", "--attach_gids=50"}, kMachine);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_THAT(parsed->settings.attach_uids, ElementsAre(1000u, 1001u));
  EXPECT_THAT(parsed->settings.attach_gids, ElementsAre(50u));
}

TEST(SettingsTest, EveryErrorNamesThePlaceWhatWasGotAndWhatIsExpected) {
  EXPECT_THAT(ErrorOf({"--sokcet=x"}), AllOf(HasSubstr("flag --sokcet"), HasSubstr("'socket'")));
  EXPECT_THAT(ErrorOf({"--spin=fast"}),
              AllOf(HasSubstr("flag --spin"), HasSubstr("'fast'"), HasSubstr("duration")));
  EXPECT_THAT(ErrorOf({"--spin=-1s"}), AllOf(HasSubstr("'-1s'"), HasSubstr("at least 0")));
  EXPECT_THAT(ErrorOf({"--staging_bytes=2GB"}), AllOf(HasSubstr("'2GB'"), HasSubstr("2GiB")));
  EXPECT_THAT(ErrorOf({"--staging_bytes=99999999999TiB"}), HasSubstr("expected bytes"));
  EXPECT_THAT(ErrorOf({"--max_sessions=0"}), HasSubstr("a number from 1 to 1024"));
  EXPECT_THAT(ErrorOf({"--attach_uids=alice"}), AllOf(HasSubstr("'alice'"), HasSubstr("numbers")));
  EXPECT_THAT(ErrorOf({"--executor=gpu"}),
              AllOf(HasSubstr("'gpu'"), HasSubstr("auto, client, worker")));
  EXPECT_THAT(ErrorOf({"socket"}), HasSubstr("expected --name=value"));
  EXPECT_THAT(ErrorOf({"--socket"}), HasSubstr("the value is missing"));
  EXPECT_THAT(ErrorOf({"--help=yes"}), HasSubstr("takes no value"));
  EXPECT_THAT(ErrorOf({"--config=/does/not/exist"}), HasSubstr("cannot read '/does/not/exist'"));
  EXPECT_THAT(ErrorOf({"--worker_backoff_min=5s", "--worker_backoff_max=1s"}),
              HasSubstr("worker_backoff_max: got 1s"));
}

TEST(SettingsTest, APortThatThereIsNotIsRefusedWhereverAnAddressIsSet) {
  for (const char* name : {"listen", "coordinator", "advertise", "wire_listen", "metrics_listen"}) {
    const std::string flag = std::string("--") + name + "=";
    for (const char* bad : {"127.0.0.1:70000", "127.0.0.1:65536", "127.0.0.1", ":7400", "a:b",
                            "a:", "a:-1", "::1:7400", "[]:1", "a b:1", "127.0.0.1:4294971760"}) {
      EXPECT_THAT(ErrorOf({flag + bad}),
                  AllOf(HasSubstr(std::string("flag --") + name), HasSubstr(bad),
                        HasSubstr("host:port with a port from")));
    }
    for (const char* good : {"", "127.0.0.1:7400", "[::1]:7400", "epd-0.epd:1", "a:65534"})
      EXPECT_EQ(ErrorOf({flag + good, "--node=x"}), "") << good;
  }
  EXPECT_EQ(ErrorOf({"--listen=0.0.0.0:0"}), "");
  EXPECT_THAT(ErrorOf({"--coordinator=a:0"}), HasSubstr("from 1 to 65535"));
  EXPECT_THAT(ErrorOf({"--wire_listen=a:65535"}), HasSubstr("from 0 to 65534"))
      << "large rows take the port behind it";
}

TEST(SettingsTest, ASettingThatIsGivenTwiceIsAnErrorThatNamesBothPlaces) {
  EXPECT_THAT(ErrorOf({"--spin=1ms", "--node=a", "--spin", "2ms"}),
              AllOf(HasSubstr("'spin' is given twice"), HasSubstr("argument 1 ('1ms')"),
                    HasSubstr("argument 3 ('2ms')")));
  EXPECT_THAT(ErrorOf({"--log-level=info", "--log_level=info"}), HasSubstr("given twice"));
  const ConfigFile file("spin = 1ms\n# a comment\nspin = 2ms\n");
  EXPECT_THAT(ErrorOf({file.flag()}), AllOf(HasSubstr("line 3 of " + file.path()),
                                            HasSubstr("line 1 ('1ms') and line 3 ('2ms')")));
  EXPECT_THAT(ErrorOf({file.flag(), file.flag()}), HasSubstr("'config' is given twice"));
}

TEST(SettingsTest, AFolderIsNoConfiguration) {
  EXPECT_THAT(ErrorOf({"--config=/etc"}),
              AllOf(HasSubstr("flag --config"), HasSubstr("the folder '/etc'")));
}

TEST(SettingsTest, AFileThatIsReadAgainChangesWhatMayChangeAndNamesTheRest) {
  auto current = ParseSettings({"--node=a", "--max_groups=5"}, kMachine);
  ASSERT_TRUE(current.ok());
  const ConfigFile file("log_level = warn\nmax_sessions = 7\nspin = 3ms\nmax_groups = 9\n");
  const auto next = ParseSettings({"--node=a", "--max_groups=5", file.flag()}, kMachine);
  ASSERT_TRUE(next.ok());
  const Reload reload = TakeOver(*next, kMachine, *current);
  EXPECT_THAT(reload.taken, UnorderedElementsAre("log_level", "max_sessions"));
  EXPECT_THAT(reload.need_restart, ElementsAre("spin"));
  EXPECT_EQ(current->settings.max_sessions, 7u);
  EXPECT_EQ(current->settings.log_level, "warn");
  EXPECT_EQ(current->settings.max_groups, 5u) << "the flag wins over the file";
  EXPECT_EQ(current->settings.spin, absl::Microseconds(50));
  EXPECT_EQ(Find(*current, "max_sessions").origin, Origin::kFile);
  EXPECT_EQ(Find(*current, "spin").origin, Origin::kDefault);
  EXPECT_THAT(TakeOver(*next, kMachine, *current).taken, IsEmpty());
}

TEST(SettingsTest, ErrorInAFileNamesItsLine) {
  const ConfigFile unknown("spin = 1ms\n\nspni = 2ms\n");
  EXPECT_THAT(ErrorOf({unknown.flag()}),
              AllOf(HasSubstr("line 3 of " + unknown.path()), HasSubstr("'spin'")));
  const ConfigFile bad("spin = soon\n");
  EXPECT_THAT(ErrorOf({bad.flag()}), AllOf(HasSubstr("line 1 of"), HasSubstr("'soon'")));
  const ConfigFile no_equals("spin 1ms\n");
  EXPECT_THAT(ErrorOf({no_equals.flag()}),
              AllOf(HasSubstr("line 1 of"), HasSubstr("name = value")));
}

TEST(SettingsTest, AValueThatNoMessageWouldTakeIsRefused) {
  EXPECT_THAT(ErrorOf({"--nccl_library=/\xff"}),
              AllOf(HasSubstr("nccl_library"), HasSubstr("got '/?' (2 bytes), expected UTF-8")));
  EXPECT_THAT(ErrorOf({"--tls_key=a\nb"}), HasSubstr("without control characters"));
  EXPECT_THAT(ErrorOf({"--worker=" + std::string(40'000, 'w')}), HasSubstr("at most 32768 bytes"));
  EXPECT_THAT(ErrorOf({"--node=" + std::string(201, 'n')}), HasSubstr("1 to 200 bytes"));
  EXPECT_TRUE(ParseSettings({"--node=" + std::string(200, 'n')}, kMachine).ok());
}

TEST(SettingsTest, PrintedConfigurationReadsBackAsTheSame) {
  const auto first = ParseSettings({"--node=b8", "--spin=2ms", "--listen=127.0.0.1:0"}, kMachine);
  ASSERT_TRUE(first.ok());
  const ConfigFile file(PrintConfig(*first));
  const auto again = ParseSettings({file.flag()}, kMachine);
  ASSERT_TRUE(again.ok()) << again.status();
  for (size_t i = 0; i < first->effective.size(); ++i) {
    EXPECT_EQ(again->effective[i].value, first->effective[i].value) << first->effective[i].name;
  }
}

TEST(SettingsTest, GpusAreAListNoneOrThoseThatRanksAreOn) {
  const auto devices = [](const std::string& value) {
    const auto parsed = ParseSettings({"--cuda_devices=" + value}, kMachine);
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    return parsed.ok() ? parsed->settings.cuda_devices : CudaDevices{};
  };
  EXPECT_EQ(devices("3,0").ordinals, (std::set<int32_t>{0, 3}));
  EXPECT_FALSE(devices("3,0").on_demand);
  EXPECT_TRUE(devices("none").ordinals.empty());
  EXPECT_FALSE(devices("none").on_demand);
  EXPECT_TRUE(devices("auto").on_demand);
  for (const char* bad : {"", "all", "0,", "256", "-1", "0;1"}) {
    EXPECT_THAT(ErrorOf({std::string("--cuda_devices=") + bad}),
                AllOf(HasSubstr("cuda_devices"), HasSubstr("auto, none, or ordinals")))
        << bad;
  }
}

TEST(SettingsTest, HelpExplainsEverySettingWithItsDefault) {
  const std::string help = HelpText(kMachine);
  const auto parsed = ParseSettings({}, kMachine);
  ASSERT_TRUE(parsed.ok());
  for (const EffectiveSetting& setting : parsed->effective) {
    EXPECT_THAT(help, HasSubstr("--" + setting.name + "="));
    EXPECT_GT(setting.help.size(), 10u) << setting.name;
  }
}

}  // namespace
}  // namespace epd
