// How rows move where a worker reads them: each step is one launch for all ranks that it has to do with, and finds what it does
// for each in the tables.
#include "daemon/backend/cuda/moves/device_tables.h"
#include "daemon/backend/cuda/moves/row_moves.h"
#include "kernels/data_type.h"

namespace epd::cuda {
PlanRoute* RowMoves::TableOf(const MovePlaces& places, size_t rank) const {
  return At<PlanRoute>(places.device,
                       layout_.plans[rank] + PlanTableOffset(spec_.num_ranks, spec_.num_experts));
}

LandRowsArgs RowMoves::LandArgs(const MovePlaces& places, size_t rank) const {
  const RoutingSpec spec = DeviceSpec(places);
  ReportWord* report = At<ReportWord>(places.device, layout_.reports) + rank;
  LandRowsArgs args;
  args.index = {.spec = spec,
                .counts = At<const int32_t>(
                    places.device, layout_.plans[rank] + PlanCountsOffset(spec.num_experts)),
                .rank = static_cast<int32_t>(rank),
                .num_locals = NumLocalExperts(spec_, static_cast<int32_t>(rank)),
                .local_experts = At<int32_t>(places.device, layout_.locals[rank]),
                .zones = At<int64_t>(places.device, layout_.zones[rank]),
                .segments = At<int64_t>(places.device, layout_.segments[rank])};
  args.row_bytes = job_.row_bytes;
  args.recv_rows = At<uint8_t>(Out(places, rank), 0);
  args.recv_weights = WeightsOut(places, rank);
  args.capacity = static_cast<int64_t>(job_.parts[rank].recv_capacity);
  args.report = report;
  args.gate = {nullptr, report};
  return args;
}

PushDirectArgs RowMoves::DirectArgs(const MovePlaces& places, size_t rank) const {
  ReportWord* report = At<ReportWord>(places.device, layout_.reports) + rank;
  PushDirectArgs args;
  args.table = TableOf(places, rank);
  args.rows = At<const uint8_t>(Stage(places, rank), 0);
  args.weights = WeightsIn(places, rank);
  args.targets = At<const RecvTarget>(places.device, layout_.targets);
  args.num_tokens = static_cast<int64_t>(job_.parts[rank].num_tokens);
  args.row_bytes = job_.row_bytes;
  args.top_k = spec_.top_k;
  args.num_ranks = spec_.num_ranks;
  args.report = report;
  args.gate = {nullptr, report};
  return args;
}

void RowMoves::ClearPadding(const MovePlaces& places, const DeviceShape& device,
                            StreamSteps& steps) const {
  std::vector<LandRowsArgs> lands;
  for (size_t rank = 0; rank < num_ranks(); ++rank) {
    if (local(rank)) lands.push_back(LandArgs(places, rank));
  }
  steps.Launch(LandRowsLaunches(WriteEach(places, layout_.lands, lands), device));
}

void RowMoves::ReadRows(const MovePlaces& places, const DeviceShape& device,
                        StreamSteps& steps) const {
  std::vector<PushDirectArgs> reads;
  for (size_t rank = 0; rank < num_ranks(); ++rank) {
    if (sees_plan(rank)) reads.push_back(DirectArgs(places, rank));
  }
  steps.Launch(PushDirectLaunches(WriteEach(places, layout_.reads, reads), device));
}

GatherReduceArgs RowMoves::GatherArgs(const MovePlaces& places, size_t rank) const {
  GatherReduceArgs args;
  args.table = TableOf(places, rank);
  args.sources = At<const GatherSource>(places.device, layout_.targets);
  args.out = At<uint8_t>(Out(places, rank), 0);
  args.out_weights = WeightsOut(places, rank);
  args.num_tokens = static_cast<int64_t>(job_.parts[rank].num_tokens);
  args.row_bytes = job_.row_bytes;
  args.top_k = spec_.top_k;
  args.num_ranks = spec_.num_ranks;
  args.gate.report = At<ReportWord>(places.device, layout_.reports) + rank;
  return args;
}

void RowMoves::Gather(const MovePlaces& places, const DeviceShape& device,
                      StreamSteps& steps) const {
  std::vector<CheckTable::Args> checks;
  std::vector<GatherReduceArgs> gathers;
  for (size_t rank = 0; rank < num_ranks(); ++rank) {
    if (!local(rank)) continue;
    const GatherReduceArgs gather = GatherArgs(places, rank);
    checks.push_back({gather.table, gather.num_tokens * gather.top_k, gather.num_ranks,
                      At<ReportWord>(places.device, layout_.reports) + rank, nullptr});
    gathers.push_back(gather);
  }
  steps.Launch(CheckTableLaunches(WriteEach(places, layout_.table_checks, checks), device));
  steps.Launch(GatherReduceLaunches(WriteEach(places, layout_.gathers, gathers),
                                    static_cast<DataType>(job_.dtype), device));
}

}  // namespace epd::cuda
