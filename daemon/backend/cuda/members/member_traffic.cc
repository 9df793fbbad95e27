#include "daemon/backend/cuda/members/member_traffic.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "kernels/cuda/landing.h"
#include "kernels/recv_layout.h"
#include "proto/epd/v1/region_layout.h"

namespace epd::cuda {
namespace {

// Of landings and messages.
constexpr uint64_t kAlignment = 64;

constexpr uint64_t Aligned(uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

class Planner {
 public:
  Planner(const TrafficShape& shape, const int32_t* counts, int self)
      : shape_(shape), spec_(shape.spec), counts_(counts), self_(self) {
    for (size_t rank = 0; rank < shape.mapped.size(); ++rank) {
      if (shape.mapped[rank]) mapped_.insert(shape.member_of_rank[rank]);
    }
  }

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
        Gather();
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

  // Whether rows of the two go to each other without being sent or landed; of one member, between its own ranks.
  bool Reads(int a, int b) const { return mapped_.contains(a) && mapped_.contains(b); }
  bool Sends(int a, int b) const { return a != b && !Reads(a, b); }

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
        if (!Sends(MemberOf(rank), member)) continue;
        Add(rank, member, TrafficPlace::kCounts, static_cast<uint64_t>(rank) * row, row);
      }
    }
  }

  void Landings() {
    for (int32_t source = 0; source < spec_.num_ranks; ++source) {
      for (int32_t destination = 0; destination < spec_.num_ranks; ++destination) {
        traffic_.landings.push_back(Landing(source, destination));
        const LandingPlaceOnDevice& place = traffic_.landings.back();
        if (!Sends(MemberOf(source), MemberOf(destination))) continue;
        Add(source, MemberOf(destination), TrafficPlace::kLanding, place.offset, place.bytes);
      }
    }
  }

  int64_t LandedRows(int32_t source, int32_t destination) const {
    const int64_t bound = LandingBound(spec_, counts_, source, destination);
    if (shape_.tokens_between.empty()) return bound;
    const int64_t pair = int64_t{source} * spec_.num_ranks + destination;
    return std::min<int64_t>(bound, shape_.tokens_between[static_cast<size_t>(pair)]);
  }

  LandingPlaceOnDevice Landing(int32_t source, int32_t destination) {
    if (MemberOf(source) != self_ && MemberOf(destination) != self_) return {};
    if (Reads(MemberOf(source), MemberOf(destination))) return {.max_rows = kReadWhereTheyLie};
    const int64_t rows = LandedRows(source, destination);
    if (rows == 0) return {};
    const LandingPlaceOnDevice place = {traffic_.landing_bytes,
                                        LandingBytes(rows, spec_.top_k, shape_.row_bytes), rows};
    traffic_.landing_bytes += Aligned(place.bytes);
    return place;
  }

  // The slots of a rank's stage, `capacity` long, that ranks of each member to which they are sent have filled, one behind
  // the other where they touch: RecvLayout's order, walked once.
  std::map<int, std::vector<SlotRun>> RunsOf(int32_t source, int64_t capacity) const {
    std::map<int, std::vector<SlotRun>> runs;
    const ExpertRange range = OwnedExpertRange(spec_, source);
    int64_t zone = 0;
    for (int32_t e = range.begin; e < range.end; ++e) {
      if (ExpertOwner(spec_, e) != source) continue;
      int64_t at = zone;
      for (int32_t rank = 0; rank < spec_.num_ranks; ++rank) {
        const int64_t begin = std::min(at, capacity);
        at += RowsOf(spec_, counts_, rank, e);
        const int64_t end = std::min(at, capacity);
        if (end == begin || !Sends(MemberOf(source), MemberOf(rank))) continue;
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

  void Gather() {
    for (int32_t source = 0; source < spec_.num_ranks; ++source) {
      const auto capacity = static_cast<int64_t>(shape_.recv_capacity[static_cast<size_t>(source)]);
      traffic_.packed.emplace_back();
      for (const auto& [member, runs] : RunsOf(source, capacity)) {
        if (MemberOf(source) == self_) {
          Pack(source, member, runs);
        } else if (member == self_) {
          Unpack(source, runs);
        }
      }
      if (MemberOf(source) == self_) continue;
      const auto all = RunsOf(source, std::numeric_limits<int64_t>::max());
      if (const auto mine = all.find(self_); mine != all.end()) {
        traffic_.max_unpacks += mine->second.size();
      }
    }
  }

  static int64_t RowsIn(const std::vector<SlotRun>& runs) {
    int64_t rows = 0;
    for (const SlotRun& run : runs) rows += run.end - run.begin;
    return rows;
  }
  uint64_t RowsBytes(int64_t rows) const { return static_cast<uint64_t>(rows) * shape_.row_bytes; }
  uint64_t MessageBytes(int64_t rows) const {
    return shm::OutBytes(RowsBytes(rows), shape_.has_weights ? static_cast<uint64_t>(rows) : 0);
  }

  void Pack(int32_t source, int member, const std::vector<SlotRun>& runs) {
    PackedRows& packed = traffic_.packed.back();
    const uint64_t at = traffic_.message_bytes;
    const int64_t num_rows = RowsIn(runs);
    const uint64_t weights_at = at + shm::OutWeightsOffset(RowsBytes(num_rows));
    int64_t row = 0;
    for (const SlotRun& run : runs) {
      packed.packs.push_back(
          {.row = packed.num_rows + row,
           .slot = run.begin,
           .rows_at = at + RowsBytes(row),
           .weights_at = weights_at + static_cast<uint64_t>(row) * sizeof(float)});
      row += run.end - run.begin;
    }
    packed.num_rows += num_rows;
    Add(source, member, TrafficPlace::kMessages, at, MessageBytes(num_rows));
    traffic_.message_bytes += Aligned(MessageBytes(num_rows));
  }

  void Unpack(int32_t source, const std::vector<SlotRun>& runs) {
    PackedRows& packed = traffic_.packed.back();
    for (const SlotRun& run : runs) {
      const int64_t num_rows = run.end - run.begin;
      packed.unpacks.push_back({.slot = run.begin, .num_rows = num_rows, .row = packed.num_rows});
      packed.num_rows += num_rows;
    }
    packed.weights_at = shm::OutWeightsOffset(RowsBytes(packed.num_rows));
    Add(source, self_, TrafficPlace::kImage, 0, MessageBytes(packed.num_rows));
  }

  const TrafficShape& shape_;
  const RoutingSpec& spec_;
  const int32_t* const counts_;
  const int self_;
  std::set<int> mapped_;  // Members that read each other, this one among them.
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
