// The receiving half of scatter. Writes the output front to back (expert, then source, then
// route), so each page and line of it is touched once and in order; reads jump between stages.
#include <cstring>

#include "kernels/cpu/argument_checks.h"
#include "kernels/cpu/copy_rows.h"
#include "kernels/cpu/hostile_read.h"
#include "kernels/cpu/stage_checks.h"
#include "kernels/scatter_rows.h"

namespace epd {
namespace {

// Where one route's data comes from.
struct PulledRoute {
  const std::uint8_t* row = nullptr;
  float weight = 0.0f;
};

class Puller {
 public:
  explicit Puller(const PullScatterArgs& args)
      : args_(args),
        plan_(*args.plan),
        out_(static_cast<std::uint8_t*>(args.recv_rows)),
        copy_(args.row_bytes) {}

  KernelError Run() {
    for (std::int32_t s = 0; s < plan_.spec.num_ranks; ++s) {
      if (IsOwn(s)) continue;
      const KernelError error = CheckScatterStage(args_, s, &sources_[s]);
      if (!error.ok()) return error;
    }
    const ExpertRange range = OwnedExpertRange(plan_.spec, plan_.rank);
    std::int64_t slot = 0;
    for (std::int32_t e = range.begin; e < range.end; ++e) {
      if (ExpertOwner(plan_.spec, e) != plan_.rank) continue;
      const std::int64_t zone_end = slot + ZoneSlots(plan_.spec, plan_.counts, e);
      for (std::int32_t s = 0; s < plan_.spec.num_ranks; ++s) {
        const std::int64_t rows = RowsOf(plan_.spec, plan_.counts, s, e);
        const KernelError error = IsOwn(s) ? PullOwn(e, slot, rows) : PullRun(s, slot, rows);
        if (!error.ok()) return error;
        slot += rows;
      }
      ZeroSlots(slot, zone_end);
      slot = zone_end;
    }
    ZeroSlots(slot, args_.capacity);
    copy_.Finish();
    return {};
  }

 private:
  // An empty tensor may have no address: then a missing stage says that it is the own one.
  bool IsOwn(std::int32_t rank) const {
    if (rank != plan_.rank) return false;
    if (args_.own_rows != nullptr) return true;
    return plan_.num_tokens == 0 && args_.sources[rank].base == nullptr;
  }

  void Write(std::int64_t slot, const PulledRoute& route) {
    if (slot >= args_.capacity) return;
    copy_.Copy(out_ + static_cast<std::uint64_t>(slot) * args_.row_bytes, route.row);
    if (args_.recv_weights != nullptr) args_.recv_weights[slot] = route.weight;
  }

  // The next `rows` routes of a peer's stage, which must fill the slots from `slot` on.
  KernelError PullRun(std::int32_t s, std::int64_t slot, std::int64_t rows) {
    ScatterSource& source = sources_[s];
    for (std::int64_t i = 0; i < rows; ++i, ++source.next) {
      const std::uint8_t* route = source.routes + source.next * sizeof(StageRoute);
      const std::uint32_t row = ReadOnce(route + offsetof(StageRoute, row));
      const std::uint32_t got = ReadOnce(route + offsetof(StageRoute, slot));
      if (row >= source.num_rows) {
        return RouteLost(KernelFault::kStageRouteRow, s, row, source.num_rows);
      }
      if (got != static_cast<std::uint64_t>(slot + i)) {
        return RouteLost(KernelFault::kStageRouteSlot, s, got, slot + i);
      }
      if (i + 1 < rows) PrefetchRow(source, ReadOnce(route + sizeof(StageRoute)));
      Write(slot + i, {source.rows + row * args_.row_bytes,
                       ReadOnceFloat(route + offsetof(StageRoute, weight))});
    }
    return {};
  }

  // This rank's own rows for `expert`, straight from the caller's tensors.
  KernelError PullOwn(std::int32_t expert, std::int64_t slot, std::int64_t rows) {
    const auto* own = static_cast<const std::uint8_t*>(args_.own_rows);
    const std::int64_t first = plan_.experts[expert].first_route;
    const std::int64_t num_entries = plan_.num_tokens * plan_.spec.top_k;
    if (first < 0 || first + rows > plan_.num_routes) {
      return AtIndex(Invalid(KernelFault::kPlanRoute, first + rows, plan_.num_routes), expert);
    }
    for (std::int64_t i = 0; i < rows; ++i) {
      const std::int64_t flat = plan_.order[first + i];
      if (flat < 0 || flat >= num_entries) {
        return AtIndex(Invalid(KernelFault::kPlanRoute, flat, num_entries), first + i);
      }
      const auto token = static_cast<std::uint64_t>(flat / plan_.spec.top_k);
      Write(slot + i, {own + token * args_.row_bytes,
                       args_.own_weights != nullptr ? args_.own_weights[flat] : 0.0f});
    }
    return {};
  }

  void PrefetchRow(const ScatterSource& source, std::uint32_t row) const {
    if (row < source.num_rows) copy_.Prefetch(source.rows + row * args_.row_bytes);
  }

  void ZeroSlots(std::int64_t begin, std::int64_t end) {
    if (end > args_.capacity) end = args_.capacity;
    if (begin >= end) return;
    ZeroBytes(out_ + static_cast<std::uint64_t>(begin) * args_.row_bytes, end - begin,
              args_.row_bytes);
    if (args_.recv_weights != nullptr) ZeroBytes(args_.recv_weights + begin, end - begin, 4);
  }

  KernelError RouteLost(KernelFault fault, std::int32_t s, std::int64_t got,
                        std::int64_t expected) const {
    const KernelError error = Fault(Code::kDataLoss, fault, got, expected);
    return AtIndex(AtRank(error, s), sources_[s].next);
  }

  const PullScatterArgs& args_;
  const RoutingPlanView& plan_;
  std::uint8_t* out_;
  RowCopy copy_;
  ScatterSource sources_[kMaxRanks];
};

KernelError CheckArgs(const PullScatterArgs& args) {
  if (const KernelError error = CheckPlan(args.plan); !error.ok()) return error;
  if (const KernelError error = CheckRowBytes(args.row_bytes); !error.ok()) return error;
  if (const KernelError error = CheckCapacity(args.capacity); !error.ok()) return error;
  if (args.sources == nullptr) return MissingArgument("sources");
  if (args.capacity > 0 && args.recv_rows == nullptr) return MissingArgument("recv_rows");
  if (args.own_rows != nullptr && args.recv_weights != nullptr && args.own_weights == nullptr &&
      args.plan->num_routes > 0) {
    return MissingArgument("own_weights");
  }
  const RoutingPlanView& plan = *args.plan;
  const std::int64_t demand = TotalRecv(plan.spec, plan.counts, plan.rank);
  if (demand > args.capacity && !args.drop_on_overflow) {
    const KernelError error =
        Fault(Code::kResourceExhausted, KernelFault::kOverflow, demand, args.capacity);
    return AtRank(error, plan.rank);
  }
  return {};
}

}  // namespace

KernelError PullScatter(const PullScatterArgs& args) {
  KernelError error = CheckArgs(args);
  if (error.ok()) error = Puller(args).Run();
  if (!error.ok() && CheckCapacity(args.capacity).ok() && CheckRowBytes(args.row_bytes).ok()) {
    ZeroBytes(args.recv_rows, args.capacity, args.row_bytes);
    ZeroBytes(args.recv_weights, args.capacity, 4);
  }
  return error;
}

}  // namespace epd
