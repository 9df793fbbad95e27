#include "daemon/worker/peer_streams/stage_table_codec.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/gather_stage.h"
#include "kernels/scatter_stage.h"
#include "proto/epd/v1/limits.h"

namespace epd {
namespace {

template <typename T>
T ReadAt(const std::string& bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

template <typename T>
void Append(const T& value, std::string& to) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <typename Header>
v1::WireStageTable CommonOf(const Header& header) {
  v1::WireStageTable out;
  out.set_version(header.version);
  out.set_rank(header.rank);
  out.set_plan_id(header.plan_id);
  out.set_num_rows(header.num_rows);
  out.set_has_weights(header.has_weights);
  out.set_row_bytes(header.row_bytes);
  return out;
}

template <typename Header>
Header HeaderOf(const v1::WireStageTable& in, uint64_t magic) {
  Header header = {};
  header.magic = magic;
  header.version = in.version();
  header.rank = in.rank();
  header.plan_id = in.plan_id();
  header.num_rows = in.num_rows();
  header.has_weights = in.has_weights();
  header.row_bytes = in.row_bytes();
  return header;
}

// Nothing: `table` is none of a scatter.
std::optional<v1::WireStageTable> PackScatter(const std::string& table) {
  if (table.size() < sizeof(ScatterStageHeader)) return std::nullopt;
  const auto header = ReadAt<ScatterStageHeader>(table, 0);
  if (header.magic != kScatterStageMagic || header.num_ranks > limits::kPlanRanks) {
    return std::nullopt;
  }
  const size_t routes_at = ScatterRoutesOffset(static_cast<int32_t>(header.num_ranks));
  if (table.size() != routes_at + uint64_t{header.num_routes} * sizeof(StageRoute)) {
    return std::nullopt;
  }
  v1::WireStageTable out = CommonOf(header);
  uint32_t before = 0;
  for (uint32_t d = 1; d <= header.num_ranks; ++d) {
    const auto begin = ReadAt<uint32_t>(table, sizeof header + d * sizeof(uint32_t));
    out.add_routes_to(begin - before);
    before = begin;
  }
  before = 0;
  for (uint32_t i = 0; i < header.num_routes; ++i) {
    const auto route = ReadAt<StageRoute>(table, routes_at + i * sizeof(StageRoute));
    uint32_t weight = 0;
    std::memcpy(&weight, &route.weight, sizeof weight);
    out.add_route_rows(route.row);
    out.add_route_slots(static_cast<int32_t>(route.slot - before));
    out.add_route_weights(weight);
    before = route.slot;
  }
  const auto& weights = out.route_weights();
  if (std::count(weights.begin(), weights.end(), 0u) == weights.size()) out.clear_route_weights();
  return out;
}

std::optional<std::string> UnpackScatter(const v1::WireStageTable& in, uint64_t max_bytes) {
  const auto num_routes = static_cast<uint64_t>(in.route_rows_size());
  const bool weighs = in.route_weights_size() > 0;
  if (in.routes_to_size() > static_cast<int>(limits::kPlanRanks) ||
      in.route_slots_size() != in.route_rows_size() ||
      (weighs && in.route_weights_size() != in.route_rows_size())) {
    return std::nullopt;
  }
  auto header = HeaderOf<ScatterStageHeader>(in, kScatterStageMagic);
  header.num_ranks = static_cast<uint32_t>(in.routes_to_size());
  header.num_routes = static_cast<uint32_t>(num_routes);
  const ScatterStageShape shape{.num_tokens = header.num_rows,
                                .num_routes = header.num_routes,
                                .num_ranks = in.routes_to_size(),
                                .row_bytes = header.row_bytes};
  header.routes_offset = ScatterRoutesOffset(shape.num_ranks);
  header.rows_offset = ScatterRowsOffset(shape);
  header.total_bytes = ScatterStageBytes(shape);
  const uint64_t bytes = header.routes_offset + num_routes * sizeof(StageRoute);
  if (bytes > max_bytes) return std::nullopt;
  std::string table;
  table.reserve(bytes);
  Append(header, table);
  uint32_t begin = 0;
  Append(begin, table);
  for (const uint32_t num : in.routes_to()) Append(begin += num, table);
  uint32_t slot = 0;
  for (int i = 0; i < in.route_rows_size(); ++i) {
    StageRoute route = {.row = in.route_rows(i), .slot = 0, .weight = 0};
    route.slot = slot += static_cast<uint32_t>(in.route_slots(i));
    const uint32_t weight = weighs ? in.route_weights(i) : 0;
    std::memcpy(&route.weight, &weight, sizeof weight);
    Append(route, table);
  }
  return table;
}

std::optional<v1::WireStageTable> PackGather(const std::string& table) {
  if (table.size() != sizeof(GatherStageHeader)) return std::nullopt;
  const auto header = ReadAt<GatherStageHeader>(table, 0);
  if (header.magic != kGatherStageMagic) return std::nullopt;
  v1::WireStageTable out = CommonOf(header);
  out.set_gathers(true);
  return out;
}

std::optional<std::string> UnpackGather(const v1::WireStageTable& in, uint64_t max_bytes) {
  auto header = HeaderOf<GatherStageHeader>(in, kGatherStageMagic);
  const GatherStageShape shape{.num_rows = header.num_rows,
                               .row_bytes = header.row_bytes,
                               .has_weights = header.has_weights != 0};
  header.weights_offset = shape.has_weights ? sizeof header : 0;
  header.rows_offset = GatherRowsOffset(shape);
  header.total_bytes = GatherStageBytes(shape);
  if (sizeof header > max_bytes) return std::nullopt;
  std::string table;
  Append(header, table);
  return table;
}

std::optional<std::string> Unpack(const v1::WireStageTable& in, uint64_t max_bytes) {
  return in.gathers() ? UnpackGather(in, max_bytes) : UnpackScatter(in, max_bytes);
}

}  // namespace

void PutTable(const std::string& table, v1::WireRowsAhead& out) {
  std::optional<v1::WireStageTable> packed = PackScatter(table);
  if (!packed.has_value()) packed = PackGather(table);
  // What a damaged table has in the fields that are left out is to be found where it is read, and not mended on the way.
  if (packed.has_value() && Unpack(*packed, table.size()) == table) {
    *out.mutable_table() = *std::move(packed);
  } else {
    out.set_bytes_of_table(table);
  }
}

std::optional<std::string> TakeTable(const v1::WireRowsAhead& in, uint64_t max_bytes) {
  if (in.has_table()) return Unpack(in.table(), max_bytes);
  if (in.bytes_of_table().size() > max_bytes) return std::nullopt;
  return in.bytes_of_table();
}

}  // namespace epd
