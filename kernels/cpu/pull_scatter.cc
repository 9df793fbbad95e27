// The receiving half of scatter. Writes the output front to back (expert, then source, then
// route), so each page and line of it is touched once and in order; reads jump between stages.
#include <cstring>
#include <limits>
#include <memory>

#include "kernels/cpu/argument_checks.h"
#include "kernels/cpu/copy_rows.h"
#include "kernels/cpu/hostile_read.h"
#include "kernels/cpu/refused_pull.h"
#include "kernels/cpu/stage_checks.h"
#include "kernels/pull_in_parts.h"
#include "kernels/scatter_rows.h"

namespace epd {
namespace {

// Where one route's data comes from.
struct PulledRoute {
  const std::uint8_t* row = nullptr;
  float weight = 0.0f;
};

// Before anything is written: whether all rows have room (kDemand), and what the stages say of themselves (kStages).
enum class Step { kDemand, kStages, kZones, kTail, kDone };

class Puller final : public PullInParts {
 public:
  explicit Puller(const PullScatterArgs& args)
      : args_(args),
        plan_(*args.plan),
        range_(OwnedExpertRange(plan_.spec, plan_.rank)),
        out_(static_cast<std::uint8_t*>(args.recv_rows)),
        copy_(args.row_bytes),
        stage_row_bytes_(StageRowBytes(args.slice, args.row_bytes)),
        expert_(range_.begin) {}

  bool Some(std::uint64_t bytes) override {
    left_ = bytes;
    do {
      error_ = Go();
    } while (error_.ok() && left_ > 0 && step_ != Step::kDone);
    return error_.ok() && step_ != Step::kDone;
  }

 private:
  KernelError Go() {
    switch (step_) {
      case Step::kDemand:
        return AddDemand();
      case Step::kStages:
        return CheckStages();
      case Step::kZones:
        return PullZones();
      case Step::kTail:
        if (!ZeroUntil(args_.capacity)) return {};
        copy_.Finish();
        step_ = Step::kDone;
        return {};
      case Step::kDone:
        return {};
    }
    return {};
  }

  void Spend(std::uint64_t bytes) { left_ -= bytes < left_ ? bytes : left_; }
  // Of `count` things of so many bytes, those that are done now: one at least.
  std::int64_t Affordable(std::int64_t count, std::uint64_t each_bytes) {
    const std::uint64_t most = left_ / each_bytes > 0 ? left_ / each_bytes : 1;
    const auto wanted = static_cast<std::uint64_t>(count);
    const std::uint64_t now = wanted < most ? wanted : most;
    Spend(now * each_bytes);
    return static_cast<std::int64_t>(now);
  }

  KernelError AddDemand() {
    for (; expert_ < range_.end && left_ > 0; ++expert_) {
      if (ExpertOwner(plan_.spec, expert_) != plan_.rank) {
        Spend(sizeof(std::int32_t));
        continue;
      }
      demand_ += ZoneSlots(plan_.spec, plan_.counts, expert_);
      Spend(ZoneCost());
    }
    if (expert_ < range_.end) return {};
    if (demand_ > args_.capacity && !args_.drop_on_overflow) {
      const KernelError error =
          Fault(Code::kResourceExhausted, KernelFault::kOverflow, demand_, args_.capacity);
      return AtRank(error, plan_.rank);
    }
    step_ = Step::kStages;
    return {};
  }

  KernelError CheckStages() {
    for (; source_ < plan_.spec.num_ranks && left_ > 0; ++source_) {
      if (IsOwn(source_)) continue;
      const KernelError error = CheckScatterStage(args_, source_, &sources_[source_]);
      if (!error.ok()) return error;
      const auto num_experts = static_cast<std::uint64_t>(range_.end - range_.begin);
      Spend(sizeof(ScatterStageHeader) + num_experts * sizeof(std::int32_t));
    }
    if (source_ < plan_.spec.num_ranks) return {};
    expert_ = range_.begin;
    step_ = Step::kZones;
    return {};
  }

  KernelError PullZones() {
    for (; expert_ < range_.end; ++expert_) {
      if (left_ == 0) return {};
      if (ExpertOwner(plan_.spec, expert_) != plan_.rank) {
        Spend(sizeof(std::int32_t));
        continue;
      }
      if (!in_zone_) BeginZone();
      const KernelError error = PullZone();
      if (!error.ok() || in_zone_) return error;
    }
    step_ = Step::kTail;
    return {};
  }

  // A line of memory for each source's count.
  std::uint64_t ZoneCost() const { return static_cast<std::uint64_t>(plan_.spec.num_ranks) * 64; }

  void BeginZone() {
    zone_end_ = slot_ + ZoneSlots(plan_.spec, plan_.counts, expert_);
    source_ = 0;
    row_ = 0;
    in_zone_ = true;
    Spend(ZoneCost());
  }

  // Goes on with the rows of `expert_`; `in_zone_` when it returns: there is more of it.
  KernelError PullZone() {
    for (; source_ < plan_.spec.num_ranks; ++source_, row_ = 0) {
      const std::int64_t rows = RowsOf(plan_.spec, plan_.counts, source_, expert_);
      while (row_ < rows) {
        if (left_ == 0) return {};
        const std::int64_t now = Affordable(rows - row_, 2 * args_.row_bytes);
        const KernelError error = IsOwn(source_) ? PullOwn(now) : PullRun(source_, slot_, now);
        if (!error.ok()) return error;
        row_ += now;
        slot_ += now;
      }
    }
    in_zone_ = !ZeroUntil(zone_end_);
    return {};
  }

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
      Write(slot + i, {source.rows + row * stage_row_bytes_,
                       ReadOnceFloat(route + offsetof(StageRoute, weight))});
    }
    return {};
  }

  // The next `rows` of this rank's own for `expert_`, straight from the caller's tensors.
  KernelError PullOwn(std::int64_t rows) {
    const auto* own = static_cast<const std::uint8_t*>(args_.own_rows);
    const std::int64_t first = plan_.experts[expert_].first_route + row_;
    const std::int64_t num_entries = plan_.num_tokens * plan_.spec.top_k;
    if (first < 0 || first + rows > plan_.num_routes) {
      return AtIndex(Invalid(KernelFault::kPlanRoute, first + rows, plan_.num_routes), expert_);
    }
    for (std::int64_t i = 0; i < rows; ++i) {
      const std::int64_t flat = plan_.order[first + i];
      if (flat < 0 || flat >= num_entries) {
        return AtIndex(Invalid(KernelFault::kPlanRoute, flat, num_entries), first + i);
      }
      const auto token = static_cast<std::uint64_t>(flat / plan_.spec.top_k);
      Write(slot_ + i, {own + token * args_.row_bytes,
                        args_.own_weights != nullptr ? args_.own_weights[flat] : 0.0f});
    }
    return {};
  }

  void PrefetchRow(const ScatterSource& source, std::uint32_t row) const {
    if (row < source.num_rows) copy_.Prefetch(source.rows + row * stage_row_bytes_);
  }

  // From `slot_` on. Whether it is done with that.
  bool ZeroUntil(std::int64_t end) {
    const std::int64_t written_end = end < args_.capacity ? end : args_.capacity;
    while (slot_ < written_end) {
      if (left_ == 0) return false;
      const std::int64_t now = Affordable(written_end - slot_, args_.row_bytes);
      ZeroBytes(out_ + static_cast<std::uint64_t>(slot_) * args_.row_bytes, now, args_.row_bytes);
      if (args_.recv_weights != nullptr) ZeroBytes(args_.recv_weights + slot_, now, 4);
      slot_ += now;
    }
    if (slot_ < end) slot_ = end;
    return true;
  }

  KernelError RouteLost(KernelFault fault, std::int32_t s, std::int64_t got,
                        std::int64_t expected) const {
    const KernelError error = Fault(Code::kDataLoss, fault, got, expected);
    return AtIndex(AtRank(error, s), sources_[s].next);
  }

  const PullScatterArgs args_;
  const RoutingPlanView& plan_;
  const ExpertRange range_;
  std::uint8_t* out_;
  RowCopy copy_;
  const std::uint64_t stage_row_bytes_;
  Step step_ = Step::kDemand;
  std::uint64_t left_ = 0;   // Bytes of this part.
  std::int64_t demand_ = 0;  // Slots.
  // Where it is: row `row_` of the run from `source_` to `expert_`, for `slot_`.
  std::int32_t expert_;
  std::int32_t source_ = 0;
  std::int64_t row_ = 0;
  std::int64_t slot_ = 0;
  std::int64_t zone_end_ = 0;  // Slot.
  bool in_zone_ = false;
  ScatterSource sources_[kMaxRanks];
};

KernelError CheckArgs(const PullScatterArgs& args) {
  if (const KernelError error = CheckPlan(args.plan); !error.ok()) return error;
  if (const KernelError error = CheckRowBytes(args.row_bytes); !error.ok()) return error;
  if (const KernelError error = CheckSlice(args.slice, args.row_bytes); !error.ok()) return error;
  if (const KernelError error = CheckCapacity(args.capacity); !error.ok()) return error;
  if (args.sources == nullptr) return MissingArgument("sources");
  if (args.capacity > 0 && args.recv_rows == nullptr) return MissingArgument("recv_rows");
  if (args.own_rows != nullptr && args.recv_weights != nullptr && args.own_weights == nullptr &&
      args.plan->num_routes > 0) {
    return MissingArgument("own_weights");
  }
  return {};
}

}  // namespace

KernelError PullScatter(const PullScatterArgs& args) {
  KernelError error = CheckArgs(args);
  if (error.ok()) {
    Puller puller(args);
    puller.Some(std::numeric_limits<std::uint64_t>::max());
    error = puller.error();
  }
  if (!error.ok() && CheckCapacity(args.capacity).ok() && CheckRowBytes(args.row_bytes).ok()) {
    ZeroBytes(args.recv_rows, args.capacity, args.row_bytes);
    ZeroBytes(args.recv_weights, args.capacity, 4);
  }
  return error;
}

std::unique_ptr<PullInParts> MakeScatterPull(const PullScatterArgs& args) {
  const KernelError error = CheckArgs(args);
  if (!error.ok()) return std::make_unique<RefusedPull>(error);
  return std::make_unique<Puller>(args);
}

}  // namespace epd
