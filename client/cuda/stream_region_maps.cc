#include "client/cuda/stream_region_maps.h"

#include "client/cuda/rank_moves.h"
#include "client/cuda/upload.h"
#include "kernels/cuda/scratch.h"

namespace epd::client {
Status StreamRegionMaps::Map(const Formation& formation) {
  if (Status s = MapRank(formation, rank_, &own_); !s.ok()) return s;
  if (!RanksMove(formation.spec)) return {};
  Status s = MapPeers(formation);
  if (!s.ok()) Unmap();
  return s;
}

void StreamRegionMaps::Unmap() {
  own_.Unmap();
  for (const std::unique_ptr<StagingMap>& peer : peers_) {
    if (peer != nullptr) peer->Unmap();
  }
}

Status StreamRegionMaps::MapPeers(const Formation& formation) {
  peers_.resize(formation.arenas.size());
  for (uint32_t rank = 0; rank < peers_.size(); ++rank) {
    if (rank == rank_) continue;
    if (peers_[rank] == nullptr)
      peers_[rank] = std::make_unique<StagingMap>(driver_, device_, /*own=*/false);
    if (Status s = MapRank(formation, rank, peers_[rank].get()); !s.ok()) return s;
  }
  return {};
}

Status StreamRegionMaps::MapRank(const Formation& formation, uint32_t rank, StagingMap* map) {
  const std::shared_ptr<const DeviceMemory>& memory = formation.arenas[rank].device;
  const char* const name = formation.spec.name.c_str();
  if (memory == nullptr || formation.stream_region_bytes == 0) {
    return MakeStatus(
        Code::kFailedPrecondition,
        "group=%s: the staging of rank %u is not on a device of this node; name the GPU "
        "of each rank in the devices of its join (cuda:0), and form the group with "
        "executor=worker where it spans nodes",
        name, rank);
  }
  cuda::Uuid uuid;
  const cuda::Result code = driver_.device_get_uuid(&uuid, device_);
  if (code != cuda::kSuccess) return Refused(driver_, "cuDeviceGetUuid", code);
  if (!memory->uuid.empty() && memory->uuid != std::string(uuid.bytes, sizeof uuid.bytes)) {
    return MakeStatus(
        Code::kFailedPrecondition,
        "group=%s rank=%u: the daemon's staging of rank %u is on another device than "
        "device %d of this process; %s",
        name, rank_, rank, device_,
        rank == rank_
            ? "name the rank's GPU in the devices of its join, or start epd for this device"
            : "with executor=client all ranks are on one device; use executor=worker");
  }
  if (formation.stream_region_offset > memory->bytes ||
      formation.stream_region_bytes > memory->bytes - formation.stream_region_offset) {
    return MakeStatus(Code::kDataLoss, "the daemon's region does not lie in its arena");
  }
  return map->Map({.bytes = memory->bytes, .fd = &memory->fd, .handle = memory->handle});
}

std::vector<uint8_t> StreamRegionMaps::MakeTables(const Formation& formation) const {
  cuda::ScratchCursor measure(nullptr);
  TakeStreamRegionTables(formation.spec.num_ranks, measure);
  std::vector<uint8_t> bytes(measure.used());
  cuda::ScratchCursor cursor(bytes.data());
  const StreamRegionTables tables = TakeStreamRegionTables(formation.spec.num_ranks, cursor);
  const StageShape shape = StageShapeOf(formation);
  for (uint32_t rank = 0; rank < peers_.size(); ++rank) {
    const StagingMap& map = rank == rank_ ? own_ : *peers_[rank];
    auto* const region = reinterpret_cast<uint8_t*>(map.address() + formation.stream_region_offset);
    tables.stages[rank] = ScatterStageAt(region, shape);
    tables.sources[rank] = GatherSourceAt(region, shape);
    tables.counts[rank] = reinterpret_cast<const int32_t*>(region);
  }
  return bytes;
}

Status StreamRegionMaps::WriteTables(const Formation& formation, cuda::DevicePointer tables) {
  if (written_ || !RanksMove(formation.spec)) return {};
  const std::vector<uint8_t> bytes = MakeTables(formation);
  const Status sent = Upload(driver_, bytes.data(), bytes.size(), tables);
  written_ = sent.ok();
  return sent;
}

}  // namespace epd::client
