#include "daemon/worker/peer_streams/stage_image.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/gather_stage.h"
#include "kernels/recv_layout.h"
#include "kernels/routing_plan.h"
#include "kernels/scatter_stage.h"
#include "kernels/slice_stage.h"
#include "proto/epd/v1/region_layout.h"

namespace epd {
namespace {

absl::Status Damaged(absl::string_view field, uint64_t got, uint64_t expected) {
  return absl::DataLossError(absl::StrCat("the published stage is damaged: ", field, " is ", got,
                                          ", expected ", expected,
                                          "; the process has written over its staging"));
}

// One load each: the value that is checked is the value that is used.
template <typename T>
T Load(const char* from) {
  T value;
  for (size_t i = 0; i < sizeof(T); i += 4) {
    const uint32_t word = *reinterpret_cast<const volatile uint32_t*>(from + i);
    std::memcpy(reinterpret_cast<char*>(&value) + i, &word, 4);
  }
  return value;
}

template <typename T>
void Append(const T& value, std::string& to) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// `from`: null for the next bytes of `made`.
void AddRun(StageImage& image, uint64_t offset, uint64_t bytes, const char* from) {
  if (bytes == 0) return;
  image.bytes += bytes;
  if (!image.pieces.empty()) {
    ImagePiece& last = image.pieces.back();
    if (last.from != nullptr && last.offset + last.bytes == offset &&
        last.from + last.bytes == from) {
      last.bytes += bytes;
      return;
    }
  }
  image.pieces.push_back({.offset = offset, .bytes = bytes, .from = from});
}

// ---- scatter ----

ScatterStageShape ShapeOf(const ScatterStageHeader& header) {
  return {header.num_rows, header.num_routes, static_cast<int32_t>(header.num_ranks),
          header.row_bytes};
}

absl::Status CheckScatter(const PublishedStage& stage, const ScatterStageHeader& header) {
  const auto ranks = static_cast<uint32_t>(stage.spec.num_ranks);
  if (header.magic != kScatterStageMagic) {
    return Damaged("magic", header.magic, kScatterStageMagic);
  }
  if (header.num_ranks != ranks) return Damaged("num_ranks", header.num_ranks, ranks);
  if (header.row_bytes != stage.said.row_bytes) {
    return Damaged("row_bytes", header.row_bytes, stage.said.row_bytes);
  }
  if (header.num_rows > stage.spec.max_tokens) {
    return Damaged("num_rows", header.num_rows, static_cast<uint64_t>(stage.spec.max_tokens));
  }
  const uint64_t max_routes = uint64_t{header.num_rows} * static_cast<uint64_t>(stage.spec.top_k);
  if (header.num_routes > max_routes) return Damaged("num_routes", header.num_routes, max_routes);
  const uint64_t total = ScatterStageBytes(ShapeOf(header));
  if (total > stage.said.stage_bytes) return Damaged("bytes", total, stage.said.stage_bytes);
  return absl::OkStatus();
}

// The routes to `destinations`, with rows numbered anew in the order of their first use.
struct CutRoutes {
  std::vector<uint32_t> begin;  // [R + 1]
  std::vector<StageRoute> routes;
  std::vector<uint32_t> rows;  // Old numbers, by new one.
};

absl::Status Cut(const PublishedStage& stage, const ScatterStageHeader& header,
                 const std::vector<Rank>& destinations, CutRoutes& cut) {
  const char* begins = stage.base + sizeof(ScatterStageHeader);
  const char* routes = stage.base + ScatterRoutesOffset(stage.spec.num_ranks);
  constexpr uint32_t kNew = UINT32_MAX;
  std::vector<uint32_t> renamed(header.num_rows, kNew);
  uint32_t taken = 0;  // Ranks share no routes, or the image would be larger than the stage.
  for (int32_t rank = 0; rank < stage.spec.num_ranks; ++rank) {
    cut.begin.push_back(static_cast<uint32_t>(cut.routes.size()));
    const bool wanted = std::find(destinations.begin(), destinations.end(),
                                  Rank(static_cast<uint32_t>(rank))) != destinations.end();
    if (!wanted) continue;
    const auto first = Load<uint32_t>(begins + 4 * rank);
    const auto end = Load<uint32_t>(begins + 4 * (rank + 1));
    if (end > header.num_routes || first > end) {
      return Damaged("route_begin", first > end ? first : end, header.num_routes);
    }
    if (first < taken) return Damaged("route_begin", first, taken);
    taken = end;
    for (uint32_t i = first; i < end; ++i) {
      auto route = Load<StageRoute>(routes + uint64_t{i} * sizeof(StageRoute));
      if (route.row >= header.num_rows) return Damaged("route.row", route.row, header.num_rows);
      uint32_t& row = renamed[route.row];
      if (row == kNew) {
        row = static_cast<uint32_t>(cut.rows.size());
        cut.rows.push_back(route.row);
      }
      route.row = row;
      cut.routes.push_back(route);
    }
  }
  cut.begin.push_back(static_cast<uint32_t>(cut.routes.size()));
  return absl::OkStatus();
}

absl::StatusOr<StageImage> ImageOfScatter(const PublishedStage& stage,
                                          const std::vector<Rank>& destinations) {
  if (stage.said.stage_bytes < ScatterRoutesOffset(stage.spec.num_ranks)) {
    return Damaged("bytes", stage.said.stage_bytes, ScatterRoutesOffset(stage.spec.num_ranks));
  }
  auto header = Load<ScatterStageHeader>(stage.base);
  if (absl::Status status = CheckScatter(stage, header); !status.ok()) return status;
  CutRoutes cut;
  if (absl::Status status = Cut(stage, header, destinations, cut); !status.ok()) return status;
  const char* rows = stage.base + ScatterRowsOffset(ShapeOf(header));
  header.num_rows = static_cast<uint32_t>(cut.rows.size());
  header.num_routes = static_cast<uint32_t>(cut.routes.size());
  const ScatterStageShape shape = ShapeOf(header);
  header.routes_offset = ScatterRoutesOffset(shape.num_ranks);
  header.rows_offset = ScatterRowsOffset(shape);
  header.total_bytes = ScatterStageBytes(shape);
  StageImage image;
  Append(header, image.made);
  for (const uint32_t begin : cut.begin) Append(begin, image.made);
  for (const StageRoute& route : cut.routes) Append(route, image.made);
  AddRun(image, 0, image.made.size(), nullptr);
  for (size_t i = 0; i < cut.rows.size(); ++i) {
    AddRun(image, header.rows_offset + i * header.row_bytes, header.row_bytes,
           rows + cut.rows[i] * header.row_bytes);
  }
  return image;
}

// ---- slices ----

bool HoldsSlices(const PublishedStage& stage) {
  return stage.said.stage_bytes >= sizeof(SliceStageHeader) &&
         Load<uint64_t>(stage.base) == kSliceStageMagic;
}

// The whole table, which every rank checks, and the rows that the destinations get.
absl::StatusOr<StageImage> ImageOfSlices(const PublishedStage& stage,
                                         const std::vector<Rank>& destinations) {
  const auto header = Load<SliceStageHeader>(stage.base);
  const auto ranks = static_cast<uint32_t>(stage.spec.num_ranks);
  const uint64_t bytes = stage.said.stage_bytes;
  if (header.num_ranks != ranks) return Damaged("num_ranks", header.num_ranks, ranks);
  const uint64_t num_slices = uint64_t{ranks} * header.slices_per_rank;
  const uint64_t rows_at = SliceRowsOffset(num_slices);
  if (rows_at > bytes) return Damaged("bytes", bytes, rows_at);
  if (header.row_bytes == 0 || header.staged_rows > (bytes - rows_at) / header.row_bytes) {
    return Damaged("staged_rows", header.staged_rows, bytes - rows_at);
  }
  StageImage image;
  Append(header, image.made);
  std::vector<std::pair<uint64_t, uint64_t>> runs;  // Of staged rows.
  for (uint64_t i = 0; i < num_slices; ++i) {
    const auto slice = Load<StageSlice>(stage.base + sizeof header + i * sizeof(StageSlice));
    Append(slice, image.made);
    const Rank to(static_cast<uint32_t>(i / header.slices_per_rank));
    if (slice.send_size == 0 ||
        std::find(destinations.begin(), destinations.end(), to) == destinations.end()) {
      continue;
    }
    const auto first = static_cast<uint64_t>(slice.staged_row);
    const auto size = static_cast<uint64_t>(slice.send_size);
    if (first > header.staged_rows || size > header.staged_rows - first) {
      return Damaged("slice.staged_row", first, header.staged_rows);
    }
    runs.emplace_back(first, first + size);
  }
  AddRun(image, 0, image.made.size(), nullptr);
  std::sort(runs.begin(), runs.end());
  uint64_t sent = 0;  // Rows before it went already, or to nobody.
  for (const auto& [begin, end] : runs) {
    const uint64_t first = std::max(begin, sent);
    if (end <= first) continue;
    const uint64_t offset = rows_at + first * header.row_bytes;
    AddRun(image, offset, (end - first) * header.row_bytes, stage.base + offset);
    sent = end;
  }
  return image;
}

// ---- gather ----

// What every rank has sent to the experts of one.
struct OwnExperts {
  std::vector<int32_t> owner;   // [L]: that rank, each time.
  std::vector<int32_t> counts;  // [R, L]
  RoutingSpec spec;             // Of these experts alone.
};

// From behind the stage, where `counts_bytes` of them are: those of the rank's own experts, or, by older clients, of all.
absl::StatusOr<OwnExperts> ReadCounts(const PublishedStage& stage, uint64_t stage_bytes,
                                      uint64_t counts_bytes) {
  const auto rank = static_cast<int32_t>(stage.rank.value);
  std::vector<size_t> experts;
  const ExpertRange range = OwnedExpertRange(stage.spec, rank);
  for (int32_t e = range.begin; e < range.end; ++e) {
    if (ExpertOwner(stage.spec, e) == rank) experts.push_back(static_cast<size_t>(e));
  }
  const auto num_ranks = static_cast<size_t>(stage.spec.num_ranks);
  const auto num_experts = static_cast<size_t>(stage.spec.num_experts);
  const bool of_all = counts_bytes != shm::CountsBytes(num_ranks, experts.size());
  if (of_all && counts_bytes != shm::CountsBytes(num_ranks, num_experts)) {
    return Damaged("bytes", stage.said.stage_bytes,
                   stage_bytes + shm::CountsBytes(num_ranks, experts.size()));
  }
  OwnExperts own{.owner = std::vector<int32_t>(experts.size(), rank), .counts = {}, .spec = {}};
  own.counts.reserve(num_ranks * experts.size());
  const char* const from = stage.base + stage_bytes;
  for (size_t source = 0; source < num_ranks; ++source) {
    for (size_t i = 0; i < experts.size(); ++i) {
      const size_t at = of_all ? source * num_experts + experts[i] : source * experts.size() + i;
      own.counts.push_back(Load<int32_t>(from + at * sizeof(int32_t)));
    }
  }
  own.spec = stage.spec;
  own.spec.num_experts = static_cast<int32_t>(experts.size());
  own.spec.expert_owner = own.owner.data();
  if (!CheckCounts(own.spec, own.counts.data()).ok()) return Damaged("counts", 1, 0);
  return own;
}

// The live rows of each of `destinations`, expert by expert.
std::vector<std::pair<int64_t, int64_t>> RunsFor(const OwnExperts& own, int64_t num_rows,
                                                 const std::vector<Rank>& destinations) {
  std::vector<std::pair<int64_t, int64_t>> runs;
  std::vector<int64_t> begin(static_cast<size_t>(own.spec.num_ranks) + 1);
  int64_t zone = 0;
  for (int32_t e = 0; e < own.spec.num_experts; ++e) {
    begin[0] = zone;
    for (int32_t source = 0; source < own.spec.num_ranks; ++source) {
      const auto at = static_cast<size_t>(source);
      begin[at + 1] = begin[at] + RowsOf(own.spec, own.counts.data(), source, e);
    }
    for (const Rank to : destinations) {
      const int64_t end = std::min(begin[to.value + 1], num_rows);
      if (end > begin[to.value]) runs.emplace_back(begin[to.value], end);
    }
    zone += AlignUp(begin.back() - zone, EffectiveAlignment(own.spec));
  }
  return runs;
}

absl::StatusOr<StageImage> ImageOfGather(const PublishedStage& stage,
                                         const std::vector<Rank>& destinations) {
  const uint64_t bytes = stage.said.stage_bytes;
  if (bytes < sizeof(GatherStageHeader)) return Damaged("bytes", bytes, sizeof(GatherStageHeader));
  const auto header = Load<GatherStageHeader>(stage.base);
  if (header.magic != kGatherStageMagic) return Damaged("magic", header.magic, kGatherStageMagic);
  if (header.row_bytes != stage.said.row_bytes) {
    return Damaged("row_bytes", header.row_bytes, stage.said.row_bytes);
  }
  const GatherStageShape shape = {header.num_rows, header.row_bytes, header.has_weights != 0};
  const uint64_t stage_bytes = shm::RoundUpToRegionAlignment(GatherStageBytes(shape));
  if (stage_bytes > bytes) return Damaged("total_bytes", stage_bytes, bytes);
  const absl::StatusOr<OwnExperts> own = ReadCounts(stage, stage_bytes, bytes - stage_bytes);
  if (!own.ok()) return own.status();
  const auto demand = static_cast<uint64_t>(
      TotalRecv(own->spec, own->counts.data(), static_cast<int32_t>(stage.rank.value)));
  if (header.num_rows > demand) return Damaged("num_rows", header.num_rows, demand);
  StageImage image;
  Append(header, image.made);
  AddRun(image, 0, sizeof header, nullptr);
  const auto runs = RunsFor(*own, header.num_rows, destinations);
  const auto add = [&](uint64_t at, uint64_t each) {
    for (const auto& [begin, end] : runs) {
      const uint64_t offset = at + static_cast<uint64_t>(begin) * each;
      AddRun(image, offset, static_cast<uint64_t>(end - begin) * each, stage.base + offset);
    }
  };
  if (shape.has_weights) add(sizeof(GatherStageHeader), 4);
  add(GatherRowsOffset(shape), header.row_bytes);
  return image;
}

}  // namespace

absl::StatusOr<StageImage> MakeImage(const PublishedStage& stage,
                                     const std::vector<Rank>& destinations) {
  switch (stage.said.kind) {
    case shm::Kind::kPrepare: {
      StageImage counts;
      AddRun(counts, 0, uint64_t{4} * static_cast<uint64_t>(stage.spec.num_experts), stage.base);
      return counts;
    }
    case shm::Kind::kDispatch:
      if (HoldsSlices(stage)) return ImageOfSlices(stage, destinations);
      return ImageOfScatter(stage, destinations);
    case shm::Kind::kCombineBackward:
      return ImageOfScatter(stage, destinations);
    case shm::Kind::kCombine:
    case shm::Kind::kDispatchBackward:
      return ImageOfGather(stage, destinations);
  }
  return absl::InternalError("no such kind of operation");
}

}  // namespace epd
