#include "daemon/backend/cpu/cpu_backend.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/backend/cpu/memfd_arenas.h"
#include "daemon/backend/cpu/row_mover.h"
#include "daemon/backend/kernel_status.h"
#include "daemon/backend/nccl_library.h"
#include "kernels/simd.h"
#include "proto/epd/v1/operation_kind.h"

namespace epd {
namespace {

// A gather reads a row for each route of a token.
uint64_t WorkOf(const MoveJob& job) {
  const uint64_t routes = shm::Scatters(job.kind) ? 1 : std::max<uint64_t>(job.top_k, 1);
  uint64_t bytes = 0;
  for (const MovePart& part : job.parts) bytes += part.stage_bytes + part.out_bytes * routes;
  return bytes;
}

// Bytes that are read or written before the other thread looks whether it is somebody else's turn.
constexpr uint64_t kAtATime = uint64_t{1} << 20;

// A move with all that it needs.
struct OwnMove {
  OwnMove(MemfdArenas& arenas, const MoveGroup& of_group, const MoveJob& what)
      : group(of_group), job(what), rows(arenas, group, job) {}

  const MoveGroup group;
  const MoveJob job;
  RowMove rows;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CpuBackend>> CpuBackend::Create(const std::string& simd) {
  const KernelError error = SetSimdLevelByName(simd.empty() ? "auto" : simd.c_str());
  if (!error.ok()) return ToStatus(error);
  return std::unique_ptr<CpuBackend>(new CpuBackend());
}

std::string CpuBackend::simd() const { return SimdLevelName(ActiveSimdLevel()); }

absl::StatusOr<std::unique_ptr<ArenaSet>> CpuBackend::CreateArenas(
    int num_arenas, uint64_t arena_bytes, const std::vector<int>& landing_of_arena) {
  return MemfdArenas::Plan(num_arenas, arena_bytes, landing_of_arena);
}

void CpuBackend::StartMove(MoveId id, ArenaSet& arenas, const MoveGroup& group, const MoveJob& job,
                           absl::Time now) {
  auto& memfds = static_cast<MemfdArenas&>(arenas);
  if (const uint64_t work = WorkOf(job); work <= at_once_.Left(now)) {
    at_once_.Take(work);
    moved_.push_back({id, MoveRowsOnCpu(memfds, group, job)});
    return;
  }
  // The other thread finds mappings, and makes none.
  for (const MovePart& part : job.parts) {
    if (const absl::Status mapped = memfds.Map(part.arena).status(); !mapped.ok()) {
      moved_.push_back({id, mapped});
      return;
    }
  }
  move_thread_.Add(
      id, group.uid, group.group_id,
      [move = std::make_shared<OwnMove>(memfds, group, job)] { return move->rows.Some(kAtATime); });
}

absl::StatusOr<std::vector<MovedRows>> CpuBackend::Poll(absl::Time) {
  std::vector<MovedRows> moved = std::exchange(moved_, {});
  std::vector<MovedRows> others = move_thread_.TakeMoved();
  std::move(others.begin(), others.end(), std::back_inserter(moved));
  return moved;
}

absl::Status CpuBackend::InitCommunicator(uint64_t group_id, uint64_t epoch,
                                          const std::string& unique_id) {
  if (unique_id.empty() || unique_id.size() == kNcclUniqueIdBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("group_id=", group_id, " epoch=", epoch, ": a unique id of ", unique_id.size(),
                   " bytes, expected ", kNcclUniqueIdBytes, " or none"));
}

}  // namespace epd
