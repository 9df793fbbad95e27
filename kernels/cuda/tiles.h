// Counting and numbering routes by column without atomics.
//
// Routes are cut into tiles of consecutive tokens. A block holds a tile's columns (an expert or a
// rank per route, -1 for none) in shared memory and gives each thread one column to look for, from
// the first route to the last. So the n-th route of a column is found by the thread of that column,
// in order, and three steps number all routes: count per tile (CountTiles), prefix over the tiles
// (SumTiles), then the same walk again from each tile's start (PlaceRoutes, PlaceLandings). Every
// thread of a warp reads the same shared word at a time, which costs one access: 4096 tokens, top-8
// and 256 experts are 32 blocks that each read 1024 words twice.
#pragma once

#include <cstdint>

#include "kernels/cuda/thread_position.h"
#include "kernels/host_device.h"

namespace epd::cuda {

inline constexpr std::int32_t kTileRoutes = 1024;
inline constexpr std::int32_t kTileThreads = 256;

// Routes of T tokens and K routes each in tiles of whole tokens.
struct Tiling {
  std::int64_t num_tokens = 0;   // T
  std::int32_t top_k = 1;        // K, at most kTileRoutes
  std::int32_t num_columns = 1;  // experts or ranks

  EPD_HOST_DEVICE std::int64_t TokensPerTile() const { return kTileRoutes / top_k; }
  EPD_HOST_DEVICE std::int64_t NumTiles() const { return CeilDiv(num_tokens, TokensPerTile()); }
  // Blocks that share a tile, a column per thread.
  EPD_HOST_DEVICE std::int64_t Chunks() const { return CeilDiv(num_columns, kTileThreads); }
  EPD_HOST_DEVICE std::int64_t Units() const { return NumTiles() * Chunks(); }
  // Length of the table of counts per (tile, column).
  EPD_HOST_DEVICE std::int64_t NumCounts() const { return NumTiles() * num_columns; }
};

// One unit's part of the work: a tile and 256 columns.
struct Tile {
  std::int64_t number;
  std::int64_t first_route;  // flat, t * K + k
  std::int32_t num_routes;
  bool is_first_chunk;  // the chunk that also does what is done once per tile
  std::int32_t column;  // of this thread; may be >= num_columns
};

EPD_HOST_DEVICE inline Tile TileOf(const Tiling& tiling, const ThreadPosition& thread) {
  const std::int64_t number = thread.unit / tiling.Chunks();
  const std::int64_t chunk = thread.unit % tiling.Chunks();
  const std::int64_t first_token = number * tiling.TokensPerTile();
  std::int64_t tokens = tiling.num_tokens - first_token;
  if (tokens > tiling.TokensPerTile()) tokens = tiling.TokensPerTile();
  return {number, first_token * tiling.top_k, static_cast<std::int32_t>(tokens * tiling.top_k),
          chunk == 0, static_cast<std::int32_t>(chunk * kTileThreads + thread.index)};
}

struct TileColumns {
  std::int32_t column[kTileRoutes];
};

// Fills `shared` from source.Read(flat, note_faults): the first phase of every walk.
template <typename Source>
EPD_HOST_DEVICE void LoadTile(const Source& source, const Tile& tile, const ThreadPosition& thread,
                              TileColumns& shared) {
  for (std::int32_t i = thread.index; i < tile.num_routes; i += thread.num_threads) {
    shared.column[i] = source.Read(tile.first_route + i, tile.is_first_chunk);
  }
}

// Counts the routes of each column per tile.
template <typename Source>
struct CountTiles {
  struct Args {
    Source source;
    Tiling tiling;
    std::int32_t* counts = nullptr;  // out: [tiles, columns]
  };
  using Shared = TileColumns;
  static constexpr std::int32_t kThreads = kTileThreads;
  static constexpr int kPhases = 2;

  EPD_HOST_DEVICE static std::int64_t Units(const Args& args) { return args.tiling.Units(); }

  template <int kPhase>
  EPD_HOST_DEVICE static void Run(const Args& args, const ThreadPosition& thread, Shared& shared) {
    const Tile tile = TileOf(args.tiling, thread);
    if constexpr (kPhase == 0) {
      LoadTile(args.source, tile, thread, shared);
    } else if (tile.column < args.tiling.num_columns) {
      std::int32_t count = 0;
      for (std::int32_t i = 0; i < tile.num_routes; ++i) count += shared.column[i] == tile.column;
      args.counts[tile.number * args.tiling.num_columns + tile.column] = count;
    }
  }
};

// Turns counts per tile into what stands before each tile, and adds them all up.
struct SumTiles {
  struct Args {
    Tiling tiling;
    std::int32_t* counts = nullptr;  // in: counts, out: exclusive prefix sums; [tiles, columns]
    std::int32_t* totals = nullptr;  // out: [columns]
  };
  using Shared = NoShared;
  static constexpr std::int32_t kThreads = kTileThreads;
  static constexpr int kPhases = 1;

  EPD_HOST_DEVICE static std::int64_t Units(const Args& args) { return args.tiling.Chunks(); }

  template <int kPhase>
  EPD_HOST_DEVICE static void Run(const Args& args, const ThreadPosition& thread, Shared&) {
    const std::int64_t column = thread.unit * thread.num_threads + thread.index;
    if (column >= args.tiling.num_columns) return;
    std::int32_t sum = 0;
    for (std::int64_t tile = 0; tile < args.tiling.NumTiles(); ++tile) {
      std::int32_t& entry = args.counts[tile * args.tiling.num_columns + column];
      const std::int32_t count = entry;
      entry = sum;
      sum += count;
    }
    args.totals[column] = sum;
  }
};

}  // namespace epd::cuda
