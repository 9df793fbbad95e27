// Goal: a report or a view of another epd, of any version or damaged, is taken or refused; what is taken can be said
// again.
#include "daemon/rpc/cluster/cluster_codec.h"
#include "proto/epd/v1/cluster.pb.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  epd::fuzz::Input in(data, size);
  const uint32_t protocol = 1 + in.Below(epd::kMaxClusterProtocol);
  const bool report = in.Below(2) == 0;
  const std::string_view bytes = in.Rest();
  if (report) {
    epd::v1::NodeReport proto;
    if (!proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return 0;
    const auto taken = epd::FromProto(proto);
    if (taken.ok()) EPD_FUZZ_CHECK(epd::FromProto(epd::ToProto(*taken)).ok());
  } else {
    epd::v1::ClusterView proto;
    if (!proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return 0;
    const auto taken = epd::FromProto(proto);
    if (taken.ok()) EPD_FUZZ_CHECK(epd::FromProto(epd::ToProto(*taken, protocol)).ok());
  }
  return 0;
}
