// Goal: the benchmark of kernels runs to its end and says of each case what was asked, before it first meets a GPU: here its
// kernels run on the CPU, over a fake driver that breaks the program where it breaks a driver's rules.
#include <gmock/gmock.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "daemon/backend/child_output.h"

namespace epd::gpu {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Object = google::protobuf::Map<std::string, google::protobuf::Value>;

struct Said {
  google::protobuf::Struct report;
  std::string complaints;

  const Object& fields() const { return report.fields(); }
  std::vector<Object> Rows(const std::string& name) const {
    std::vector<Object> rows;
    for (const google::protobuf::Value& row : fields().at(name).list_value().values()) {
      rows.push_back(row.struct_value().fields());
    }
    return rows;
  }
};

// On such a machine. Everything is a 64th, so that a case is over at once.
Said RunBench(const std::string& machine, std::vector<std::string> more = {}) {
  setenv("LD_LIBRARY_PATH", std::filesystem::absolute("tests/fakes/cuda/for_programs").c_str(), 1);
  setenv("EPD_FAKE_CUDA", machine.c_str(), 1);
  const std::string bench = std::filesystem::absolute("tests/gpu/bench");
  // The fake takes any bytes for an image.
  std::vector<std::string> arguments = {"--image", bench, "--divide", "64", "--times", "2"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const absl::StatusOr<ChildOutput> ended = RunChild(bench, arguments, absl::Seconds(120));
  unsetenv("LD_LIBRARY_PATH");
  unsetenv("EPD_FAKE_CUDA");
  Said said;
  if (!ended.ok()) {
    ADD_FAILURE() << ended.status();
    return said;
  }
  said.complaints = ended->complaints;
  EXPECT_EQ(ended->end, "") << ended->complaints;
  EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(ended->output, &said.report).ok())
      << ended->output;
  return said;
}

TEST(BenchTest, EachShapeHasItsCasesLiveAndOfCapacityAloneAndReplayed) {
  const Said said = RunBench("");
  EXPECT_THAT(said.complaints, IsEmpty());
  EXPECT_EQ(said.fields().at("device").string_value(), "Fake GPU 0");
  EXPECT_GT(said.fields().at("copy_gbytes_per_s").number_value(), 0);
  std::map<std::string, std::map<std::string, int>> cases;
  for (const Object& row : said.Rows("cases")) {
    if (!row.contains("shape")) continue;
    ++cases[row.at("shape").string_value()][row.at("kernel").string_value()];
    EXPECT_GT(row.at("p50_us").number_value(), 0) << row.at("kernel").string_value();
    EXPECT_GE(row.at("p99_us").number_value(), row.at("p50_us").number_value());
    EXPECT_TRUE(row.contains("of_copy"));
  }
  EXPECT_EQ(cases.size(), 3u);
  for (const auto& [shape, kernels] : cases) {
    // Once for each number of SMs; by bulk copies where these are.
    const std::map<std::string, int> wanted = {
        {"scatter read", 6},        {"scatter expand", 6},        {"scatter read bulk", 6},
        {"scatter expand bulk", 6}, {"gather reduce", 6},         {"copy out live", 1},
        {"copy out capacity", 1},   {"scatter read replayed", 1}, {"gather reduce replayed", 1}};
    EXPECT_EQ(kernels, wanted) << shape;
  }
  EXPECT_THAT(said.Rows("peers"), IsEmpty());
}

TEST(BenchTest, OfSeveralGpusEachReadsEachOtherOne) {
  const Said said = RunBench("devices=3 nopeer=2-1", {"--peers"});
  EXPECT_THAT(said.complaints, IsEmpty());
  EXPECT_FALSE(said.fields().contains("cases"));
  std::vector<std::string> pairs;
  for (const Object& row : said.Rows("peers")) {
    const auto ordinal = [&row](const char* name) {
      return std::to_string(static_cast<int>(row.at(name).number_value()));
    };
    const bool access = row.at("access").bool_value();
    pairs.push_back(ordinal("reader") + "<-" + ordinal("owner") + (access ? "" : " by the host"));
    EXPECT_GT(row.at("copy_gbytes_per_s").number_value(), 0);
    EXPECT_EQ(row.contains("kernel_gbytes_per_s"), access);
    if (!access) continue;
    EXPECT_GT(row.at("kernel_gbytes_per_s").number_value(), 0);
  }
  EXPECT_THAT(pairs, ElementsAre("0<-1", "0<-2", "1<-0", "1<-2", "2<-0", "2<-1 by the host"));
}

}  // namespace
}  // namespace epd::gpu
