// Goal: clients, scripts and epds built against the published protocol keep working; whoever breaks
// it is told what broke.
#include <fstream>
#include <functional>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "tests/unit/proto/compatibility/descriptor_diff.h"

namespace epd {
namespace {

using google::protobuf::DescriptorProto;
using google::protobuf::FileDescriptorSet;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string Read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

FileDescriptorSet Current() {
  FileDescriptorSet set;
  EXPECT_TRUE(set.ParseFromString(Read("proto/epd/v1/descriptors.binpb")));
  return set;
}

FileDescriptorSet Golden() {
  FileDescriptorSet set;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
      Read("tests/unit/proto/compatibility/golden_v1.textproto"), &set));
  return set;
}

google::protobuf::FileDescriptorProto& FindFile(FileDescriptorSet& set, const std::string& stem) {
  for (auto& file : *set.mutable_file()) {
    if (file.name() == "proto/epd/v1/" + stem + ".proto") return file;
  }
  ADD_FAILURE() << "no file " << stem;
  return *set.mutable_file(0);
}

DescriptorProto& FindMessage(FileDescriptorSet& set, const std::string& name) {
  for (auto& file : *set.mutable_file()) {
    for (auto& message : *file.mutable_message_type()) {
      if (message.name() == name) return message;
    }
  }
  ADD_FAILURE() << "no message " << name;
  return *set.mutable_file(0)->mutable_message_type(0);
}

TEST(CompatibilityTest, NothingOfThePublishedProtocolWasBroken) {
  const FileDescriptorSet golden = Golden();
  ASSERT_GE(golden.file_size(), 3);
  EXPECT_THAT(BreakingDifferences(golden, Current()), IsEmpty())
      << "add fields instead; a removed one is reserved, number and name";
}

TEST(CompatibilityTest, EachKindOfBreakIsNamed) {
  struct Case {
    std::function<void(FileDescriptorSet&)> break_it;
    std::string says;
  };
  const Case cases[] = {
      {[](auto& s) { FindMessage(s, "Join").mutable_field(0)->set_number(77); },
       "Join.request_id has another"},
      {[](auto& s) { FindMessage(s, "Join").mutable_field()->DeleteSubrange(0, 1); },
       "Join.request_id is gone"},
      {[](auto& s) { FindMessage(s, "Attach").set_name("Hello"); }, "message Attach is gone"},
      {[](auto& s) { FindFile(s, "attach").mutable_enum_type(0)->mutable_value(1)->set_number(9); },
       "enum value"},
      {[](auto& s) {
         FindFile(s, "node").mutable_service(0)->mutable_method(0)->set_server_streaming(true);
       },
       "method Node.GetStatus"},
  };
  for (const Case& c : cases) {
    FileDescriptorSet broken = Golden();
    c.break_it(broken);
    EXPECT_THAT(BreakingDifferences(Golden(), broken), ElementsAre(HasSubstr(c.says)));
  }
}

TEST(CompatibilityTest, AFieldMayGoWhenItsNumberAndNameAreReserved) {
  FileDescriptorSet current = Golden();
  DescriptorProto& join = FindMessage(current, "Join");
  const auto field = join.field(0);
  join.mutable_field()->DeleteSubrange(0, 1);
  join.add_reserved_name(field.name());
  auto* range = join.add_reserved_range();
  range->set_start(field.number());
  range->set_end(field.number() + 1);
  EXPECT_THAT(BreakingDifferences(Golden(), current), IsEmpty());
}

}  // namespace
}  // namespace epd
