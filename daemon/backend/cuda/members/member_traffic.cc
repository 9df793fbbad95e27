#include "daemon/backend/cuda/members/member_traffic.h"

#include <algorithm>
#include <map>

#include "kernels/cuda/landing.h"
#include "kernels/recv_layout.h"
#include "kernels/region/region_layout.h"

namespace epd::cuda {
namespace {

constexpr uint64_t kLandingAlignment = 64;

class Planner {
 public:
  Planner(const TrafficShape& shape, const int32_t* counts, int self)
      : shape_(shape), spec_(shape.spec), counts_(counts), self_(self) {}

  MemberTraffic Run() {
    switch (shape_.kind) {
      case shm::Kind::kPrepare:
        Counts();
        break;
      case shm::Kind::kDispatch:
      case shm::Kind::kCombineBackward:
        Landings();
        break;
      case shm::Kind::kCombine:
      case shm::Kind::kDispatchBackward:
        for (int32_t source = 0; source < spec_.num_ranks; ++source) Slots(source);
        break;
    }
    return std::move(traffic_);
  }

 private:
  struct SlotRun {
    int64_t begin = 0;
    int64_t end = 0;
  };

  int MemberOf(int32_t rank) const { return shape_.member_of_rank[static_cast<size_t>(rank)]; }

  // Bytes of `rank`, from its member to another one; nothing where this is neither.
  void Add(int32_t rank, int to, TrafficPlace place, uint64_t offset, uint64_t bytes) {
    const int from = MemberOf(rank);
    if (bytes == 0 || (from != self_ && to != self_)) return;
    traffic_.transfers.push_back({.peer = from == self_ ? to : from,
                                  .sends = from == self_,
                                  .place = place,
                                  .rank = rank,
                                  .offset = offset,
                                  .bytes = bytes});
  }

  void Counts() {
    const uint64_t row = static_cast<uint64_t>(spec_.num_experts) * sizeof(int32_t);
    const auto& members = shape_.member_of_rank;
    const int last = *std::max_element(members.begin(), members.end());
    for (int32_t rank = 0; rank < spec_.num_ranks; ++rank) {
      for (int member = 0; member <= last; ++member) {
        if (member == MemberOf(rank)) continue;
        Add(rank, member, TrafficPlace::kCounts, static_cast<uint64_t>(rank) * row, row);
      }
    }
  }

  void Landings() {
    for (int32_t source = 0; source < spec_.num_ranks; ++source) {
      for (int32_t destination = 0; destination < spec_.num_ranks; ++destination) {
        traffic_.landings.push_back(Landing(source, destination));
        const LandingPlaceOnDevice& place = traffic_.landings.back();
        if (MemberOf(source) == MemberOf(destination)) continue;
        Add(source, MemberOf(destination), TrafficPlace::kLanding, place.offset, place.bytes);
      }
    }
  }

  LandingPlaceOnDevice Landing(int32_t source, int32_t destination) {
    if (MemberOf(source) != self_ && MemberOf(destination) != self_) return {};
    const int64_t bound = LandingBound(spec_, counts_, source, destination);
    if (bound == 0) return {};
    const LandingPlaceOnDevice place = {traffic_.landing_bytes,
                                        LandingBytes(bound, spec_.top_k, shape_.row_bytes)};
    traffic_.landing_bytes +=
        (place.bytes + kLandingAlignment - 1) / kLandingAlignment * kLandingAlignment;
    return place;
  }

  // The slots of a rank's stage that ranks of each other member have filled, one behind the other where
  // they touch: RecvLayout's order, walked once.
  std::map<int, std::vector<SlotRun>> RunsOf(int32_t source) const {
    std::map<int, std::vector<SlotRun>> runs;
    const auto capacity = static_cast<int64_t>(shape_.recv_capacity[static_cast<size_t>(source)]);
    const ExpertRange range = OwnedExpertRange(spec_, source);
    int64_t zone = 0;
    for (int32_t e = range.begin; e < range.end; ++e) {
      if (ExpertOwner(spec_, e) != source) continue;
      int64_t at = zone;
      for (int32_t rank = 0; rank < spec_.num_ranks; ++rank) {
        const int64_t begin = std::min(at, capacity);
        at += RowsOf(spec_, counts_, rank, e);
        const int64_t end = std::min(at, capacity);
        if (end == begin || MemberOf(rank) == MemberOf(source)) continue;
        std::vector<SlotRun>& of_member = runs[MemberOf(rank)];
        if (!of_member.empty() && of_member.back().end == begin) {
          of_member.back().end = end;
        } else {
          of_member.push_back({begin, end});
        }
      }
      zone += AlignUp(at - zone, EffectiveAlignment(spec_));
    }
    return runs;
  }

  void Slots(int32_t source) {
    const RegionLayout region =
        MakeLayout(shape_.kind,
                   {.num_slots = shape_.recv_capacity[static_cast<size_t>(source)],
                    .row_bytes = shape_.row_bytes},
                   RegionStorage::kDeviceWorker);
    for (const auto& [member, runs] : RunsOf(source)) {
      if (shape_.has_weights) {
        AddRuns(source, member, runs, region.weights_at, sizeof(float));
      }
      AddRuns(source, member, runs, 0, shape_.row_bytes);
    }
  }

  void AddRuns(int32_t source, int member, const std::vector<SlotRun>& runs, uint64_t at,
               uint64_t each) {
    for (const SlotRun& run : runs) {
      Add(source, member, TrafficPlace::kStage, at + static_cast<uint64_t>(run.begin) * each,
          static_cast<uint64_t>(run.end - run.begin) * each);
    }
  }

  const TrafficShape& shape_;
  const RoutingSpec& spec_;
  const int32_t* const counts_;
  const int self_;
  MemberTraffic traffic_;
};

}  // namespace

uint64_t MemberTraffic::SentBytes() const {
  uint64_t bytes = 0;
  for (const Transfer& transfer : transfers) bytes += transfer.sends ? transfer.bytes : 0;
  return bytes;
}

MemberTraffic PlanMemberTraffic(const TrafficShape& shape, const int32_t* counts, int self) {
  return Planner(shape, counts, self).Run();
}

}  // namespace epd::cuda
