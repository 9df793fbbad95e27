// Copies between a client's tensor and staging: the copy-in before an operation is published.
#pragma once

#include <cstdint>

#include "kernels/cuda/fan_out.h"
#include "kernels/cuda/report.h"

namespace epd::cuda {

struct CopyRowsArgs {
  const std::uint8_t* from = nullptr;  // [max_rows, row_bytes], aligned to 16 bytes
  std::uint8_t* to = nullptr;          // the same
  std::int64_t max_rows = 0;
  std::uint64_t row_bytes = 0;
  // Rows to copy if fewer than max_rows, known on the device only: total_recv. Or null.
  const std::int64_t* num_rows = nullptr;
  Gate gate;
  bool zeros = false;  // Zeros in place of rows that are not copied: the copy-out.
};

// Copies rows in order, as many as there are; where the gate is closed none. It reads no others, and writes
// nothing or zeros in their place.
template <typename Mover>
struct CopyRows {
  using Args = CopyRowsArgs;
  using Shared = typename Mover::Shared;
  static constexpr std::int32_t kThreads = Mover::kThreads;
  static constexpr int kPhases = 1;

  EPD_HOST_DEVICE static std::int64_t Units(const Args& args) {
    return CeilDiv(args.max_rows, kThreads / kWarpThreads);
  }

  template <int kPhase>
  EPD_HOST_DEVICE static void Run(const Args& args, const ThreadPosition& thread, Shared& shared) {
    const std::int64_t row = thread.Task();
    if (row >= args.max_rows) return;
    const std::uint64_t offset = static_cast<std::uint64_t>(row) * args.row_bytes;
    const RowPart whole = {row, 0, 1};
    if (!args.gate.Open() || (args.num_rows != nullptr && row >= *args.num_rows)) {
      if (!args.zeros) return;
      return VectorMover<Mover::kWidth>::Zero(args.to + offset, args.row_bytes, whole, thread);
    }
    RowTargets to = {};
    to.row[0] = args.to + offset;
    Mover::Copy({args.from + offset, to, args.row_bytes, whole}, thread, shared);
  }
};

}  // namespace epd::cuda
