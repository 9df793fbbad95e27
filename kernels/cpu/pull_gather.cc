#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "kernels/count_reader.h"
#include "kernels/cpu/argument_checks.h"
#include "kernels/cpu/copy_rows.h"
#include "kernels/cpu/hostile_read.h"
#include "kernels/cpu/reduce_rows.h"
#include "kernels/cpu/refused_pull.h"
#include "kernels/cpu/stage_checks.h"
#include "kernels/gather_reduce_rows.h"
#include "kernels/pull_in_parts.h"

namespace epd {
namespace {

// The live rows of one token, in k order.
struct TokenRows {
  const std::uint8_t* rows[kMaxTopK];
  std::int32_t count = 0;
};

class Puller final : public PullInParts {
 public:
  explicit Puller(const PullGatherArgs& args)
      : args_(args),
        plan_(*args.plan),
        copy_(args.row_bytes),
        reduce_(SelectReduce(args.dtype, ActiveSimdLevel())),
        element_bytes_(DataTypeBytes(args.dtype)),
        counts_(args.plan->spec, args.plan->counts) {}

  bool Some(std::uint64_t bytes) override {
    if (!has_sources_) {
      if (counts_.Some(bytes)) return true;
      error_ = FindSources();
      has_sources_ = true;
    } else if (token_ < args_.num_tokens) {
      const DefaultFloatMode float_mode;
      error_ = ReduceSome(bytes);
    }
    return error_.ok() && token_ < args_.num_tokens;
  }

 private:
  KernelError FindSources() {
    std::vector<std::int64_t> demands(static_cast<std::size_t>(plan_.spec.num_ranks));
    counts_.sums().SlotsOfRanks(plan_.spec, demands.data());
    for (std::int32_t s = 0; s < plan_.spec.num_ranks; ++s) {
      const std::int64_t demand = demands[static_cast<std::size_t>(s)];
      const KernelError error = IsOwn(s) ? TakeOwn(demand, &sources_[s])
                                         : CheckGatherStage(args_, s, demand, &sources_[s]);
      if (!error.ok()) return error;
    }
    return {};
  }

  // An empty buffer may have no address: then a missing stage says that it is the own one.
  bool IsOwn(std::int32_t rank) const {
    if (rank != plan_.rank) return false;
    if (args_.own_rows != nullptr) return true;
    return args_.own_capacity == 0 && args_.sources[rank].base == nullptr;
  }

  KernelError TakeOwn(std::int64_t demand, GatherSource* source) const {
    if (demand > args_.own_capacity && !args_.drop_on_overflow) {
      const KernelError error =
          Fault(Code::kResourceExhausted, KernelFault::kOverflow, demand, args_.own_capacity);
      return AtRank(error, plan_.rank);
    }
    *source = {static_cast<const std::uint8_t*>(args_.own_rows), args_.own_weights,
               LiveSlots(demand, args_.own_capacity)};
    return {};
  }

  // Whole tokens, or some columns of one whose rows are more than that together.
  KernelError ReduceSome(std::uint64_t bytes) {
    const auto num_rows = static_cast<std::uint64_t>(plan_.spec.top_k) + 1;
    const std::uint64_t token_bytes = args_.row_bytes * num_rows;
    const auto left = static_cast<std::uint64_t>(args_.num_tokens - token_);
    if (column_ == 0 && bytes >= token_bytes) {
      const std::uint64_t tokens = std::min(left, bytes / token_bytes);
      return ReduceTokens(token_ + static_cast<std::int64_t>(tokens));
    }
    TokenRows token;
    const KernelError error = LookUp(token_, &token);
    if (!error.ok()) return error;
    const std::uint64_t elements = std::max<std::uint64_t>(bytes / num_rows / element_bytes_, 1);
    const std::uint64_t length = std::min(args_.row_bytes - column_, elements * element_bytes_);
    for (std::int32_t i = 0; i < token.count; ++i) token.rows[i] += column_;
    Reduce(token, OutOf(token_) + column_, length);
    column_ += length;
    if (column_ == args_.row_bytes) {
      column_ = 0;
      ++token_;
    }
    return {};
  }

  // Looks up one token ahead, so that its rows' first lines are on their way while the token
  // before it is added up.
  KernelError ReduceTokens(std::int64_t end) {
    TokenRows tokens[2];
    const std::int64_t begin = token_;
    for (std::int64_t t = begin; t <= end; ++t) {
      if (t < end) {
        const KernelError error = LookUp(t, &tokens[t % 2]);
        if (!error.ok()) return error;
      }
      if (t > begin) Reduce(tokens[(t - 1) % 2], OutOf(t - 1), args_.row_bytes);
    }
    token_ = end;
    copy_.Finish();
    return {};
  }

  // Finds a token's live rows and copies its weights.
  KernelError LookUp(std::int64_t token, TokenRows* found) {
    found->count = 0;
    const std::int64_t first = token * plan_.spec.top_k;
    for (std::int32_t k = 0; k < plan_.spec.top_k; ++k) {
      const PlanRoute* entry = plan_.table + first + k;
      const auto dst = static_cast<std::int32_t>(ReadOnce(&entry->dst_rank));
      const auto slot = static_cast<std::int32_t>(ReadOnce(&entry->slot));
      float weight = 0.0f;
      if (dst < -1 || dst >= plan_.spec.num_ranks) {
        return AtRoute(Invalid(KernelFault::kPlanRoute, dst, plan_.spec.num_ranks), token, k);
      }
      if (slot < 0) return AtRoute(Invalid(KernelFault::kPlanRoute, slot, 0), token, k);
      if (dst >= 0 && slot < sources_[dst].num_rows) {
        const GatherSource& source = sources_[dst];
        const std::uint8_t* row = source.rows + static_cast<std::uint64_t>(slot) * args_.row_bytes;
        copy_.Prefetch(row);
        found->rows[found->count++] = row;
        if (source.weights != nullptr) weight = ReadOnceFloat(source.weights + slot);
      }
      if (args_.out_weights != nullptr) args_.out_weights[first + k] = weight;
    }
    return {};
  }

  std::uint8_t* OutOf(std::int64_t token) const {
    return static_cast<std::uint8_t*>(args_.out) +
           static_cast<std::uint64_t>(token) * args_.row_bytes;
  }

  void Reduce(const TokenRows& token, std::uint8_t* out, std::uint64_t bytes) const {
    if (token.count == 0) {
      std::memset(out, 0, bytes);
    } else if (token.count == 1) {
      std::memcpy(out, token.rows[0], bytes);
    } else {
      reduce_(token.rows, token.count, out, bytes / element_bytes_);
    }
  }

  const PullGatherArgs args_;
  const RoutingPlanView& plan_;
  RowCopy copy_;
  ReduceFunction reduce_;
  std::size_t element_bytes_;
  CountReader counts_;  // Of all ranks, which say how many rows each source has.
  bool has_sources_ = false;
  std::int64_t token_ = 0;    // The first one that is not written in full,
  std::uint64_t column_ = 0;  // ... and how many bytes of it are.
  GatherSource sources_[kMaxRanks];
};

KernelError CheckArgs(const PullGatherArgs& args) {
  if (const KernelError error = CheckPlan(args.plan); !error.ok()) return error;
  if (const KernelError error = CheckRowBytes(args.row_bytes); !error.ok()) return error;
  const std::size_t element_bytes = DataTypeBytes(args.dtype);
  if (element_bytes == 0) {
    return Invalid(KernelFault::kDataType, static_cast<std::int32_t>(args.dtype),
                   static_cast<std::int32_t>(DataType::kFloat16));
  }
  if (args.row_bytes % element_bytes != 0) {
    return Invalid(KernelFault::kRowBytes, args.row_bytes, element_bytes);
  }
  if (args.num_tokens != args.plan->num_tokens) {
    return Invalid(KernelFault::kNumTokens, args.num_tokens, args.plan->num_tokens);
  }
  if (args.sources == nullptr) return MissingArgument("sources");
  if (args.num_tokens > 0 && args.out == nullptr) return MissingArgument("out");
  if (args.own_rows == nullptr) return {};
  if (args.out_weights != nullptr && args.own_weights == nullptr && args.own_capacity > 0) {
    return MissingArgument("own_weights");
  }
  return CheckCapacity(args.own_capacity);
}

void ZeroOutputs(const PullGatherArgs& args) {
  if (!CheckPlan(args.plan).ok() || !CheckRowBytes(args.row_bytes).ok()) return;
  ZeroBytes(args.out, args.num_tokens, args.row_bytes);
  ZeroBytes(args.out_weights, args.num_tokens * args.plan->spec.top_k, 4);
}

}  // namespace

KernelError PullGather(const PullGatherArgs& args) {
  KernelError error = CheckArgs(args);
  if (error.ok()) {
    Puller puller(args);
    while (puller.Some(std::numeric_limits<std::uint64_t>::max())) {
    }
    error = puller.error();
  }
  if (!error.ok()) ZeroOutputs(args);
  return error;
}

std::unique_ptr<PullInParts> MakeGatherPull(const PullGatherArgs& args) {
  const KernelError error = CheckArgs(args);
  if (!error.ok()) return std::make_unique<RefusedPull>(error);
  return std::make_unique<Puller>(args);
}

}  // namespace epd
