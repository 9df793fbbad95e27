// Goal: whatever a caller of the gRPC API asks for, a group's spec is refused or within the limits, and a plan of its memory
// is refused or adds up.
#include <string>

#include "daemon/codec/codec.h"
#include "daemon/rpc/node_api/memory_plan.h"
#include "proto/epd/v1/limits.h"
#include "proto/epd/v1/node.pb.h"
#include "tests/fuzz/input.h"

namespace epd {
namespace {

template <typename Message>
Message Parsed(std::string_view bytes) {
  Message message;
  (void)message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  return message;
}

void Create(std::string_view bytes) {
  const auto request = Parsed<v1::CreateGroupRequest>(bytes);
  const absl::StatusOr<GroupSpec> spec = FromProto(request.spec(), SpecDefaults{});
  if (!spec.ok() || !Validate(*spec).ok()) return;
  EPD_FUZZ_CHECK(spec->num_ranks >= 1 && spec->num_ranks <= limits::kGroupRanks);
  EPD_FUZZ_CHECK(spec->num_experts >= 1 && spec->num_experts <= limits::kExperts);
  EPD_FUZZ_CHECK(spec->hidden >= 1 && spec->hidden <= limits::kHidden);
  EPD_FUZZ_CHECK(!spec->name.empty() && spec->name.size() <= limits::kNameBytes);
  const absl::StatusOr<GroupSpec> again = FromProto(ToProto(*spec), SpecDefaults{});
  EPD_FUZZ_CHECK(again.ok() && again->num_ranks == spec->num_ranks && again->name == spec->name);
}

void Plan(fuzz::Input& in) {
  GroupShape shape;
  shape.num_ranks = in.Take<uint32_t>() >> in.Below(32);
  shape.num_experts = in.Take<uint32_t>() >> in.Below(32);
  shape.top_k = in.Take<uint32_t>() >> in.Below(32);
  shape.max_tokens_per_rank = in.Take<uint32_t>() >> in.Below(32);
  shape.recv_capacity_per_rank = in.Take<uint32_t>() >> in.Below(32);
  shape.alignment = in.Take<uint32_t>() >> in.Below(32);
  shape.hidden = in.Take<uint64_t>() >> in.Below(64);
  shape.element_bytes = in.Take<uint64_t>() >> in.Below(64);
  shape.worker_executor = in.Below(2) == 0;
  const uint64_t pool = in.Take<uint64_t>();
  absl::StatusOr<v1::PlanMemoryResponse> plan = PlanGroupMemory(shape, pool);
  if (!plan.ok()) {
    EPD_FUZZ_CHECK(!plan.status().message().empty());
    return;
  }
  JudgePlan(shape.num_ranks, pool, in.Take<uint64_t>(), *plan);
  EPD_FUZZ_CHECK(plan->total_bytes_per_node() >= plan->total_bytes_per_rank());
  EPD_FUZZ_CHECK(plan->total_bytes_per_rank() >= plan->dispatch_bytes_per_rank());
  EPD_FUZZ_CHECK(!plan->fits() || plan->dispatch_bytes_per_rank() <= pool);
}

}  // namespace
}  // namespace epd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  epd::fuzz::Input in(data, size);
  if (in.Below(2) == 0) {
    epd::Create(in.Rest());
  } else {
    epd::Plan(in);
  }
  return 0;
}
