// Goal: what is at a limit of limits.h is taken and what is one beyond is refused or cut, by whoever checks it; and each
// limit stands in the table of daemon/README.md.
#include "proto/epd/v1/limits.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <fstream>
#include <functional>
#include <memory>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/c/group_arguments.h"
#include "daemon/codec/codec.h"
#include "daemon/core/group_spec.h"
#include "daemon/core/rank_holder.h"
#include "daemon/node/attach/attach_server.h"
#include "daemon/node/settings/settings.h"
#include "daemon/packet/packet_channel.h"
#include "daemon/rpc/node_api/memory_plan.h"
#include "daemon/worker/peer_streams/peer_message_codec.h"
#include "kernels/routing_spec.h"

namespace epd {
namespace {

struct Limit {
  const char* name;
  uint64_t value;
  // Whether `got`, which is the limit or one more, is taken as it is.
  std::function<bool(uint64_t got)> takes;
};

void PrintTo(const Limit& limit, std::ostream* out) { *out << limit.name; }

// ---- who checks ----

bool Sends(size_t bytes, size_t num_fds) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return false;
  const UniqueFd theirs(pair[1]);
  PacketChannel channel{UniqueFd(pair[0])};
  const auto null = std::make_shared<UniqueFd>(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const absl::Status sent =
      channel.Send(std::string(bytes, 'x'), PacketChannel::Fds(num_fds, null));
  EXPECT_TRUE(sent.ok() || absl::IsInvalidArgument(sent)) << sent;
  return sent.ok();
}

bool GoesInOneDatagram(size_t num_fds) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return false;
  const UniqueFd ours(pair[0]);
  const UniqueFd theirs(pair[1]);
  const UniqueFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  return SendPacket(ours.get(), "x", std::vector<int>(num_fds, null.get())).ok();
}

bool Speaks(uint32_t min, uint32_t max) {
  v1::Attach attach;
  attach.set_min_version(min);
  attach.set_max_version(max);
  uint32_t version;
  return NegotiateVersion(attach, &version).ok();
}

GroupSpec SoundSpec() {
  GroupSpec spec;
  spec.name = "g";
  spec.num_ranks = 1;
  spec.num_experts = 4;
  spec.max_tokens_per_rank = 8;
  spec.recv_capacity_per_rank = 8;
  spec.hidden = 8;
  spec.top_k = 2;
  spec.max_token_dtype = Dtype::kFloat32;
  spec.backend = "cpu";
  spec.executor = Executor::kClient;
  return spec;
}

bool IsServed(uint64_t num_ranks, const std::string& backend) {
  GroupSpec spec = SoundSpec();
  spec.num_ranks = spec.num_experts = static_cast<uint32_t>(num_ranks);
  spec.backend = backend;
  return CheckServed(spec).ok();
}

bool Valid(const std::function<void(GroupSpec&)>& change) {
  GroupSpec spec = SoundSpec();
  change(spec);
  return Validate(spec).ok();
}

bool Planned(const std::function<void(RoutingSpec&)>& change) {
  RoutingSpec spec;
  spec.num_ranks = 1;
  spec.num_experts = 1;
  spec.top_k = 1;
  spec.alignment = 1;
  change(spec);
  return CheckRoutingSpec(spec).ok();
}

bool Joins(uint64_t num_ranks, uint64_t metadata_bytes, uint64_t device_bytes) {
  epd_group_spec spec = {};
  spec.struct_size = sizeof spec;
  spec.name = "g";
  const std::vector<uint32_t> ranks(num_ranks);
  const std::string metadata(metadata_bytes, 'm');
  const std::string device(device_bytes, 'd');
  const std::vector<const char*> devices(num_ranks, device.c_str());
  epd_join_args args = {};
  args.struct_size = sizeof args;
  args.spec = &spec;
  args.ranks = ranks.data();
  args.num_ranks = num_ranks;
  args.devices = devices.data();
  args.metadata = metadata.c_str();
  client::Join join;
  epd_plans plans;
  return client::ReadJoin(&args, &join, &plans).ok();
}

GroupShape Shape(uint32_t num_ranks, uint64_t element_bytes) {
  return {.num_ranks = num_ranks,
          .num_experts = num_ranks,
          .top_k = 1,
          .max_tokens_per_rank = 8,
          .recv_capacity_per_rank = 8,
          .hidden = 1024,
          .element_bytes = element_bytes};
}

bool HasEagerBuffers(uint32_t num_ranks) {
  return PlanGroupMemory(Shape(num_ranks, 4), uint64_t{1} << 40)->eager_bytes_per_rank() > 0;
}

uint64_t SummedBytes(uint64_t element_bytes) {
  return PlanGroupMemory(Shape(1, element_bytes), 0)->combine_bytes_per_rank();
}

bool ComesWhole(const std::string& name) {
  PeerMessage message;
  message.name = name;
  LastSubject said;
  LastSubject heard;
  return FromProto(ToProto(message, said), heard)->name == name;
}

bool IsToldWhole(const std::string& text) {
  const absl::Status status = absl::InternalError(text);
  return ToProto(status).message() == text && FromProto(ToProto(status)) == status;
}

bool IsSetting(uint64_t slots_per_session) {
  const MachineFacts machine = {"a7", "/run/epd", "/opt/epd/bin", uint64_t{8} << 30};
  return ParseSettings({absl::StrCat("--slots_per_session=", slots_per_session)}, machine).ok();
}

std::vector<Limit> Limits() {
  using namespace limits;  // NOLINT(google-build-using-namespace): the table is about nothing else.
  return {
      {"kDatagramBytes", kDatagramBytes, [](uint64_t n) { return Sends(n, 0); }},
      {"kDatagramFds", kDatagramFds, GoesInOneDatagram},
      {"kMessageFds", kMessageFds, [](uint64_t n) { return Sends(1, n); }},
      {"kMinProtocolVersion", kMinProtocolVersion,
       [](uint64_t n) { return Speaks(0, static_cast<uint32_t>(2 * kMinProtocolVersion - n)); }},
      {"kProtocolVersion", kProtocolVersion,
       [](uint64_t n) { return Speaks(static_cast<uint32_t>(n), UINT32_MAX); }},
      {"kGroupRanks", kGroupRanks,
       [](uint64_t n) {
         return Valid(
             [n](GroupSpec& s) { s.num_ranks = s.num_experts = static_cast<uint32_t>(n); });
       }},
      {"kPlanRanks", kPlanRanks,
       [](uint64_t n) {
         return Planned([n](RoutingSpec& s) { s.num_ranks = static_cast<int32_t>(n); });
       }},
      {"kJoinRanks", kJoinRanks, [](uint64_t n) { return Joins(n, 0, 0); }},
      {"kEagerRanks", kEagerRanks,
       [](uint64_t n) { return HasEagerBuffers(static_cast<uint32_t>(n)); }},
      {"kServedRanks", kServedRanks, [](uint64_t n) { return IsServed(n, "cpu"); }},
      {"kDeviceRanks", kDeviceRanks, [](uint64_t n) { return IsServed(n, "cuda"); }},
      {"kMinOpSlots", kMinOpSlots, [](uint64_t n) { return IsSetting(2 * kMinOpSlots - n); }},
      {"kMaxOpSlots", kMaxOpSlots, IsSetting},
      {"kExperts", kExperts,
       [](uint64_t n) {
         return Valid([n](GroupSpec& s) { s.num_experts = static_cast<uint32_t>(n); });
       }},
      {"kTopK", kTopK,
       [](uint64_t n) { return Valid([n](GroupSpec& s) { s.top_k = static_cast<uint32_t>(n); }); }},
      {"kAlignment", kAlignment,
       [](uint64_t n) {  // A power of two: one beyond is the next.
         return Planned([n](RoutingSpec& s) {
           s.alignment = static_cast<int32_t>(n == kAlignment ? n : 2 * (n - 1));
         });
       }},
      {"kHidden", kHidden,
       [](uint64_t n) {
         return Valid([n](GroupSpec& s) { s.hidden = static_cast<uint32_t>(n); });
       }},
      {"kSlots", kSlots,
       [](uint64_t n) {
         return Valid([n](GroupSpec& s) { s.recv_capacity_per_rank = static_cast<uint32_t>(n); });
       }},
      {"kMovedElementBytes", kMovedElementBytes,
       [](uint64_t n) { return PlanGroupMemory(Shape(1, n), 0).ok(); }},
      {"kSummedElementBytes", kSummedElementBytes,
       [](uint64_t n) { return SummedBytes(n) > SummedBytes(n - 1); }},
      {"kNameBytes", kNameBytes,
       [](uint64_t n) { return Valid([n](GroupSpec& s) { s.tenant = std::string(n, 't'); }); }},
      {"kMetadataBytes", kMetadataBytes, [](uint64_t n) { return Joins(1, n, 0); }},
      {"kOperationNameBytes", kOperationNameBytes,
       [](uint64_t n) { return ComesWhole(std::string(n, 'o')); }},
      {"kErrorBytes", kErrorBytes, [](uint64_t n) { return IsToldWhole(std::string(n, 'e')); }},
  };
}

class LimitTest : public testing::TestWithParam<Limit> {};

TEST_P(LimitTest, TakesWhatIsAtTheLimitAndNotOneBeyond) {
  EXPECT_TRUE(GetParam().takes(GetParam().value));
  EXPECT_FALSE(GetParam().takes(GetParam().value + 1));
}

INSTANTIATE_TEST_SUITE_P(All, LimitTest, testing::ValuesIn(Limits()),
                         [](const auto& test) { return std::string(test.param.name); });

// ---- that there are no others ----

std::string Content(const char* path) {
  const std::ifstream file(path);
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

std::set<std::string> Names(const std::string& text, const std::regex& pattern) {
  std::set<std::string> names;
  for (std::sregex_iterator at(text.begin(), text.end(), pattern), end; at != end; ++at) {
    names.insert((*at)[1]);
  }
  return names;
}

TEST(LimitsTest, EachIsTestedAndStandsInTheTable) {
  const std::set<std::string> declared =
      Names(Content("proto/epd/v1/limits.h"), std::regex("constexpr [a-z0-9_:]+ (k[A-Za-z]+) ="));
  EXPECT_GT(declared.size(), 15u);
  std::set<std::string> tested = {"kDeviceNameBytes"};  // tests/integration/daemon/test_hostile.py
  for (const Limit& limit : Limits()) tested.insert(limit.name);
  EXPECT_EQ(tested, declared);
  EXPECT_EQ(Names(Content("daemon/README.md"), std::regex("\\| `(k[A-Za-z]+)` \\|")), declared);
}

}  // namespace
}  // namespace epd
