#include "client/cuda/stream_call.h"

#include <algorithm>

#include "kernels/routing_plan.h"
#include "proto/epd/v1/operation_kind.h"
#include "proto/epd/v1/route_counts.h"

namespace epd::client {
namespace {

using cuda::CopyRowsArgs;
using cuda::CopyRowsLaunches;
using cuda::DeviceShape;
using cuda::LaunchList;

// Plans are multiples of it.
constexpr uint64_t kPlanPieceBytes = 64;

cuda::BuildPlanOnDeviceArgs BuildArgs(const StreamCall& call, const RoutingSpec& spec,
                                      const StreamBuffers& buffers, const StreamPlaces& places) {
  cuda::BuildPlanOnDeviceArgs args;
  args.spec = spec;
  args.rank = static_cast<int32_t>(call.rank);
  args.ids_at = &places.words->ids;
  args.experts = {buffers.topk_idx, buffers.idx_bytes == 8 ? IndexType::kInt64 : IndexType::kInt32,
                  spec.num_experts, places.report};
  args.tiling = {static_cast<int64_t>(call.num_tokens), spec.top_k, spec.num_experts};
  args.plan = static_cast<uint8_t*>(buffers.handle_mem);
  args.token_counts = buffers.token_counts;
  args.total_recv = buffers.total_recv;
  args.scratch = places.scratch;
  args.report = places.report;
  return args;
}

LaunchList StageOwnCounts(const RoutingSpec& spec, const StreamPlaces& places,
                          const DeviceShape& device) {
  cuda::StageCounts::Args args;
  args.counts = places.scratch.own_counts;
  args.stage = reinterpret_cast<int32_t*>(places.region);
  args.told = places.told_counts;
  args.ids = &places.words->ids;
  args.capacity = shm::kMaxRouteCounts;
  args.num_experts = spec.num_experts;
  args.gate.status = &places.words->announced;
  return cuda::StageCountsLaunches(args, device);
}

LaunchList ReadStagedCounts(const RoutingSpec& spec, const StreamPlaces& places,
                            const DeviceShape& device) {
  cuda::ReadCounts::Args args;
  args.stages = places.staged_counts;
  args.counts = places.counts;
  args.num_ranks = spec.num_ranks;
  args.num_experts = spec.num_experts;
  args.gate.status = &places.words->published;
  return cuda::ReadCountsLaunches(args, device);
}

bool Misaligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 != 0; }

}  // namespace

Status CheckBuffers(const StreamCall& call, const StreamBuffers& buffers) {
  const bool prepare = call.kind == shm::Kind::kPrepare;
  const bool scatters = Scatters(call.kind);
  const uint64_t in = scatters ? call.num_tokens : call.recv_capacity;
  const uint64_t out = scatters ? call.recv_capacity : call.num_tokens;
  const struct {
    const char* name;
    const void* pointer;
    bool needed;
  } all[] = {
      {"handle_mem", buffers.handle_mem, true},
      {"topk_idx", buffers.topk_idx, prepare && call.num_tokens != 0},
      {"token_counts", buffers.token_counts, prepare},
      {"total_recv", buffers.total_recv, prepare},
      {"rows", buffers.rows, !prepare && in != 0},
      {"weights", buffers.weights, !prepare && call.has_weights && in != 0},
      {"out_rows", buffers.out_rows, !prepare && out != 0},
      {"out_weights", buffers.out_weights, !prepare && call.has_weights && out != 0},
  };
  for (const auto& one : all) {
    if (!one.needed) continue;
    if (one.pointer == nullptr || Misaligned(one.pointer)) {
      return MakeStatus(Code::kInvalidArgument, "%s: got %p, expected device memory aligned to 16",
                        one.name, one.pointer);
    }
  }
  return {};
}

LaunchList CopyBlock(const Block& block, const uint32_t* status, bool zeros,
                     const DeviceShape& device) {
  CopyRowsArgs args;
  args.from = static_cast<const uint8_t*>(block.from);
  args.to = static_cast<uint8_t*>(block.to);
  args.max_rows = block.row_bytes == 0 ? 0 : static_cast<int64_t>(block.num_rows);
  args.row_bytes = block.row_bytes;
  args.num_rows = block.live;
  args.gate.status = status;
  args.zeros = zeros;
  return CopyRowsLaunches(args, device);
}

Block WeightsBlock(const void* from, void* to, uint64_t num_weights) {
  constexpr uint64_t kMostInAPiece = 1024;
  if (num_weights == 0) return {from, to, 0, 0};
  const uint64_t piece = std::min(num_weights & (~num_weights + 1), kMostInAPiece);
  return {from, to, num_weights / piece, piece * sizeof(float)};
}

RegionLayout LayoutOf(const StreamCall& call, const RoutingSpec& spec) {
  return MakeLayout(call.kind,
                    {.num_ranks = static_cast<uint64_t>(spec.num_ranks),
                     .num_experts = static_cast<uint64_t>(spec.num_experts),
                     .num_tokens = call.num_tokens,
                     .num_slots = call.recv_capacity,
                     .top_k = call.top_k,
                     .row_bytes = call.row_bytes,
                     .has_weights = call.has_weights,
                     .plan_bytes = RoutingPlanBytes(spec)},
                    RegionStorage::kDeviceWorker);
}

LaunchList CountLaunchesOf(const StreamCall& call, const RoutingSpec& spec,
                           const StreamBuffers& buffers, const StreamPlaces& places,
                           const DeviceShape& device) {
  return cuda::CountLaunches(BuildArgs(call, spec, buffers, places), device);
}

std::array<LaunchList, 3> CopyInOf(const StreamCall& call, const RoutingSpec& spec,
                                   const StreamBuffers& buffers, const StreamPlaces& places,
                                   const DeviceShape& device) {
  const RegionLayout layout = LayoutOf(call, spec);
  const auto copy = [&](const Block& block) {
    return CopyBlock(block, &places.words->announced, false, device);
  };
  if (call.kind == shm::Kind::kPrepare && places.staged_counts != nullptr) {
    return {StageOwnCounts(spec, places, device), {}, {}};
  }
  if (call.kind == shm::Kind::kPrepare) {
    return {copy({places.scratch.own_counts, places.region, 1, layout.stage_bytes}), {}, {}};
  }
  uint8_t* const stage = places.region + layout.stage_at;
  uint8_t* const weights = stage + layout.weights_at;
  return {copy({buffers.handle_mem, places.region, layout.plan_bytes / kPlanPieceBytes,
                kPlanPieceBytes}),
          copy({buffers.rows, stage, layout.rows, call.row_bytes,
                Scatters(call.kind) ? nullptr : &places.words->live_rows}),
          copy(WeightsBlock(buffers.weights, weights, layout.num_weights))};
}

std::array<LaunchList, 2> CopyOutOf(const StreamCall& call, const RoutingSpec& spec,
                                    const StreamBuffers& buffers, const StreamPlaces& places,
                                    const DeviceShape& device) {
  const RegionLayout layout = LayoutOf(call, spec);
  uint8_t* const out = places.region + layout.out_at;
  const uint32_t* const published = &places.words->published;
  if (call.kind == shm::Kind::kPrepare) {
    // Of a failed use the region may not even be mapped any more, and only copies look at their gate before
    // they read.
    cuda::BuildPlanOnDeviceArgs args = BuildArgs(call, spec, buffers, places);
    args.counts = places.counts;
    args.status = published;
    if (places.staged_counts != nullptr) {
      return {ReadStagedCounts(spec, places, device), cuda::BuildPlanLaunches(args, device)};
    }
    return {
        CopyBlock(Block{out, places.counts, layout.out_bytes / sizeof(int32_t), sizeof(int32_t)},
                  published, true, device),
        cuda::BuildPlanLaunches(args, device)};
  }
  uint8_t* const weights = out + layout.out_weights_at;
  // Nobody has cleared the region behind the live rows.
  const int64_t* const live = Scatters(call.kind) ? &places.words->live_rows : nullptr;
  return {CopyBlock({out, buffers.out_rows, layout.out_rows, call.row_bytes, live}, published, true,
                    device),
          CopyBlock(WeightsBlock(weights, buffers.out_weights, layout.num_out_weights), published,
                    true, device)};
}

}  // namespace epd::client
