// Goal: scripts can rely on the JSON: every name is there, values survive the way back, and the
// published schemas are those of this build.
#include "client/cli/json.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "client/cli/commands/command.h"
#include "client/cli/report.pb.h"

namespace epd::cli {
namespace {

using ::testing::HasSubstr;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(ToJsonTest, PrintsEveryNameInSnakeCaseAlsoWithDefaultValues) {
  const std::string json = ToJson(epd::v1::GetStatusResponse(), /*one_line=*/true);
  for (const char* part :
       {"\"num_ready_groups\":0", "\"health\":\"HEALTH_UNSPECIFIED\"", "\"problems\":[]",
        "\"pool_bytes\":\"0\"", "\"coordinator_connected\":false"}) {
    EXPECT_THAT(json, HasSubstr(part));
  }
  EXPECT_EQ(json.find('\n'), json.size() - 1);
}

TEST(ToJsonTest, ComesBackAsTheSameMessage) {
  epd::v1::GetStatusResponse status;
  status.set_node("n\"\n1");
  status.set_incarnation(UINT64_MAX);
  status.mutable_up()->set_seconds(90);
  status.mutable_up()->set_nanos(500'000'000);
  status.add_workers()->set_state(epd::v1::WORKER_STATE_BACKING_OFF);
  epd::v1::GetStatusResponse back;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(ToJson(status, false), &back).ok());
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(status, back))
      << back.DebugString();
}

TEST(JsonSchemaTest, DescribesEnumsDurationsAndNestedMessages) {
  const std::string schema = JsonSchema(*DoctorReport::descriptor(), "t");
  EXPECT_THAT(
      schema,
      HasSubstr(R"("local": {"type": "array", "items": {"$ref": "#/$defs/epd.v1.Finding"}})"));
  EXPECT_THAT(schema, HasSubstr(R"("epd.v1.Finding": {)"));
  EXPECT_THAT(JsonSchema(*epd::v1::Worker::descriptor(), "t"),
              HasSubstr("WORKER_STATE_BACKING_OFF"));
}

TEST(OutputSchemasTest, ThePublishedOnesAreThoseOfThisBuild) {
  const std::filesystem::path folder = "deploy/schema";
  size_t num_published = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    num_published += entry.path().extension() == ".json";
  }
  EXPECT_EQ(num_published, OutputSchemas().size());
  for (const auto& [name, schema] : OutputSchemas()) {
    EXPECT_EQ(ReadFile(folder / name), schema)
        << "run: bazel run //client/cli:epctl_schema -- $PWD/deploy/schema";
  }
}

}  // namespace
}  // namespace epd::cli
