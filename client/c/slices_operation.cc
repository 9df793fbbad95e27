#include "client/c/slices_operation.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/land_slices.h"
#include "proto/epd/v1/limits.h"
#include "proto/epd/v1/row_dtype.h"

namespace epd::client {
namespace {

// What the worker lets a row have. Longer ones are compared by CheckSlices.
constexpr uint64_t kMaxRowBytes = uint64_t{limits::kHidden} * limits::kMovedElementBytes;

void WriteIndex(void* to, uint32_t bytes, uint64_t i, int64_t value) {
  char* const at = static_cast<char*>(to) + i * bytes;
  const auto narrow = static_cast<int32_t>(value);
  if (bytes == 4) {
    std::memcpy(at, &narrow, sizeof narrow);
  } else {
    std::memcpy(at, &value, sizeof value);
  }
}

}  // namespace

Status SlicesOperation::Plan(const Formation& formation, shm::SlotRequest* request) {
  request->kind = shm::Kind::kDispatch;
  if (formation.spec.executor == Executor::kWorker) {
    return MakeStatus(Code::kFailedPrecondition,
                      "the group's rows are moved by the worker, which knows no slices; form it "
                      "with executor client");
  }
  if (Status s = ReadSlices(args_, formation.spec.num_ranks, &own_, &runs_); !s.ok()) return s;
  request->dtype = args_.dtype;
  request->row_bytes = std::min(args_.row_bytes, kMaxRowBytes);
  request->top_k = 1;
  request->alignment = 1;
  request->plan_id = 1;  // Of no prepare.
  request->stage_bytes = own_.stage_bytes();
  return {};
}

Status SlicesOperation::Stage(const Admitted& admitted) {
  std::byte* const to = admitted.region.data();
  std::memcpy(to, &own_.header, sizeof own_.header);
  std::memcpy(to + sizeof own_.header, own_.slices.data(),
              own_.slices.size() * sizeof own_.slices[0]);
  std::byte* const rows = to + own_.rows_offset();
  const auto* const operand = static_cast<const std::byte*>(args_.operand);
  for (const StagedRun& run : runs_) {
    std::memcpy(rows + static_cast<uint64_t>(run.staged_row) * args_.row_bytes,
                operand + static_cast<uint64_t>(run.first) * args_.row_bytes,
                static_cast<uint64_t>(run.end - run.first) * args_.row_bytes);
  }
  return {};
}

Status SlicesOperation::Pull(const Admitted& admitted) {
  const auto num_ranks = static_cast<uint32_t>(admitted.stages.size());
  std::vector<RankSlices> all(num_ranks);
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    if (rank == args_.rank) {
      all[rank] = own_;
    } else if (Status s = LoadSlices(admitted.stages[rank], rank, num_ranks, &all[rank]); !s.ok()) {
      return s;
    }
  }
  const bool may_overlap = args_.adds != 0 && shm::IsReducible(args_.dtype);
  if (Status s = CheckSlices(all, may_overlap); !s.ok()) return s;
  Land(all, admitted.stages);
  TellOffsets(all);
  return {};
}

void SlicesOperation::Land(const std::vector<RankSlices>& all,
                           std::span<const StageRef> stages) const {
  LandSlicesArgs land = {.landings = {},
                         .row_bytes = args_.row_bytes,
                         .num_rows = static_cast<int64_t>(args_.output_rows),
                         .others = static_cast<const std::byte*>(args_.output),
                         .output = static_cast<std::byte*>(args_.result)};
  if (shm::IsReducible(args_.dtype)) land.dtype = static_cast<DataType>(args_.dtype);
  for (uint32_t from = 0; from < all.size(); ++from) {
    const bool own = from == args_.rank;
    const auto* const rows =
        own ? static_cast<const std::byte*>(args_.operand)
            : static_cast<const std::byte*>(stages[from].base) + all[from].rows_offset();
    for (uint32_t number = 0; number < args_.slices_per_rank; ++number) {
      const StageSlice& slice = all[from].at(args_.rank, number);
      if (slice.send_size == 0) continue;
      const auto first = static_cast<uint64_t>(own ? slice.input_offset : slice.staged_row);
      land.landings.push_back({slice.output_offset, slice.output_offset + slice.send_size,
                               rows + first * args_.row_bytes});
    }
  }
  LandSlices(std::move(land));
}

void SlicesOperation::TellOffsets(const std::vector<RankSlices>& all) const {
  uint64_t i = 0;
  for (const RankSlices& sender : all) {
    for (uint32_t number = 0; number < args_.slices_per_rank; ++number, ++i) {
      const StageSlice& slice = sender.at(args_.rank, number);
      if (args_.landing_offsets != nullptr) {
        WriteIndex(args_.landing_offsets, args_.index_bytes, i, slice.output_offset);
      }
      if (args_.source_offsets != nullptr) {
        WriteIndex(args_.source_offsets, args_.index_bytes, i, slice.input_offset);
      }
    }
  }
}

Status SlicesOperation::TakeOutput(const Admitted&, const std::byte*) {
  return MakeStatus(Code::kInternal, "the worker moved slices");
}

void SlicesOperation::ZeroOutputs() {
  if (args_.result != nullptr) std::memset(args_.result, 0, args_.output_rows * args_.row_bytes);
  const uint64_t bytes = own_.slices.size() * args_.index_bytes;
  if (args_.landing_offsets != nullptr) std::memset(args_.landing_offsets, 0, bytes);
  if (args_.source_offsets != nullptr) std::memset(args_.source_offsets, 0, bytes);
}

}  // namespace epd::client
