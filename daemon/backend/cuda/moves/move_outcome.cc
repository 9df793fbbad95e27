// What the kernels of a move found, as a status for people.
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/backend/cuda/moves/row_moves.h"
#include "daemon/backend/kernel_status.h"
#include "kernels/cuda/plan_report.h"

namespace epd::cuda {
absl::Status RowMoves::Outcome(const uint8_t* host) const {
  if (job_.kind == shm::Kind::kPrepare) return absl::OkStatus();
  for (size_t rank = 0; rank < num_ranks(); ++rank) {
    ReportWord word = kNoReport;
    std::memcpy(&word, host + layout_.host_results + rank * sizeof word, sizeof word);
    if (word == kNoReport) continue;
    // The landings are as long as its tokens once said that they must be.
    if (const KernelError error = ReadReport(word); error.fault == KernelFault::kBufferTooSmall) {
      return absl::DataLossError(absl::StrCat(
          "output of rank ", rank, ": its plan has more tokens for rank ", error.index,
          " than when the sizes were agreed on, so it was changed since; prepare again"));
    }
    PlanHeader got = {};
    std::memcpy(&got, host + HeadersAt() + rank * sizeof got, sizeof got);
    const PlanHeader want = MakePlanHeader(
        spec_, static_cast<int32_t>(rank), {group_.group_id, group_.epoch, job_.plan_id},
        static_cast<int64_t>(job_.parts[rank].num_tokens), got.num_routes);
    return ToStatus(ReadPlanReport(word, got, want), absl::StrCat("output of rank ", rank, ": "));
  }
  // Each rank's slots follow from its own counts: rows meet only where all plans have the same.
  return CountsSeen(host).status();
}

bool RowMoves::Fit(const std::vector<int32_t>& counts) const {
  return counts.size() * sizeof(int32_t) == counts_bytes() &&
         CheckCounts(spec_, counts.data()).ok();
}

absl::StatusOr<std::vector<int32_t>> RowMoves::CountsRead(const uint8_t* host) const {
  std::vector<bool> of_rank(num_ranks());
  for (size_t rank = 0; rank < num_ranks(); ++rank) of_rank[rank] = local(rank);
  return CountsOf(host, of_rank);
}

absl::StatusOr<std::vector<int32_t>> RowMoves::CountsSeen(const uint8_t* host) const {
  std::vector<bool> of_rank(num_ranks());
  for (size_t rank = 0; rank < num_ranks(); ++rank) of_rank[rank] = sees_plan(rank);
  return CountsOf(host + CountsAt(), of_rank);
}

absl::StatusOr<std::vector<int32_t>> RowMoves::CountsOf(const uint8_t* host,
                                                        const std::vector<bool>& of_rank) const {
  const uint8_t* first = nullptr;
  size_t first_rank = 0;
  for (size_t rank = 0; rank < num_ranks(); ++rank) {
    if (!of_rank[rank]) continue;
    const uint8_t* counts = host + rank * counts_bytes();
    if (first == nullptr) {
      first = counts;
      first_rank = rank;
    } else if (std::memcmp(first, counts, counts_bytes()) != 0) {
      return absl::DataLossError(absl::StrCat(
          "output of rank ", rank, ": its plan has other counts than the plan of rank ", first_rank,
          ", so one of the two is not of this prepare; prepare again"));
    }
  }
  std::vector<int32_t> counts(counts_bytes() / sizeof(int32_t));
  if (first != nullptr) std::memcpy(counts.data(), first, counts_bytes());
  if (!Fit(counts)) {
    return absl::DataLossError(absl::StrCat("output of rank ", first_rank,
                                            ": the counts of its plan fit no group of this size; "
                                            "prepare again"));
  }
  return counts;
}

}  // namespace epd::cuda
