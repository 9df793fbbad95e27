#include "client/c/slice_table.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace epd::client {
namespace {

// [num_slices] int32 or int64 of the caller.
class Indices {
 public:
  Indices(const void* data, uint32_t bytes)
      : data_(static_cast<const char*>(data)), bytes_(bytes) {}

  int64_t operator[](uint64_t i) const {
    if (bytes_ == 4) return Load<int32_t>(i);
    return Load<int64_t>(i);
  }

 private:
  template <typename T>
  T Load(uint64_t i) const {
    T value;
    std::memcpy(&value, data_ + i * sizeof value, sizeof value);
    return value;
  }

  const char* data_;
  uint32_t bytes_;
};

long long Shown(int64_t value) { return static_cast<long long>(value); }

// Whether `size` rows from `offset` on, neither negative, are among `rows`.
bool Fits(int64_t offset, int64_t size, uint64_t rows) {
  const auto first = static_cast<uint64_t>(offset);
  return first <= rows && static_cast<uint64_t>(size) <= rows - first;
}

Status CheckArguments(const epd_ragged_args& args) {
  if (args.index_bytes != 4 && args.index_bytes != 8) {
    return MakeStatus(Code::kInvalidArgument, "index_bytes: got %u, expected 4 or 8",
                      args.index_bytes);
  }
  if (args.slices_per_rank == 0 || args.slices_per_rank > kMaxSlicesPerRank) {
    return MakeStatus(Code::kInvalidArgument, "slices_per_rank: got %u, expected 1 to %u",
                      args.slices_per_rank, kMaxSlicesPerRank);
  }
  if (args.row_bytes == 0 || args.operand_rows > INT32_MAX || args.output_rows > INT32_MAX) {
    return MakeStatus(Code::kInvalidArgument,
                      "rows of %llu bytes, %llu of the operand and %llu of the output; expected at "
                      "least a byte and at most 2^31 - 1 rows",
                      static_cast<unsigned long long>(args.row_bytes),
                      static_cast<unsigned long long>(args.operand_rows),
                      static_cast<unsigned long long>(args.output_rows));
  }
  const bool indices = args.input_offsets != nullptr && args.send_sizes != nullptr &&
                       args.output_offsets != nullptr && args.recv_sizes != nullptr;
  const bool rows = (args.operand != nullptr || args.operand_rows == 0) &&
                    (args.output_rows == 0 || (args.output != nullptr && args.result != nullptr));
  if (indices && rows) return {};
  return MakeStatus(Code::kInvalidArgument,
                    "operand, output, result, sizes and offsets must not be NULL");
}

// Of entry i of this rank's arrays.
Status CheckOwn(const StageSlice& slice, uint64_t i, uint64_t operand_rows) {
  const auto at = static_cast<unsigned long long>(i);
  if (slice.send_size < 0 || slice.recv_size < 0) {
    return MakeStatus(Code::kInvalidArgument,
                      "send_sizes[%llu] is %lld and recv_sizes[%llu] is %lld; sizes must not be "
                      "negative",
                      at, Shown(slice.send_size), at, Shown(slice.recv_size));
  }
  if (slice.send_size == 0) return {};
  if (slice.input_offset < 0 || slice.output_offset < 0) {
    return MakeStatus(Code::kInvalidArgument,
                      "input_offsets[%llu] is %lld and output_offsets[%llu] is %lld; offsets must "
                      "not be negative",
                      at, Shown(slice.input_offset), at, Shown(slice.output_offset));
  }
  if (Fits(slice.input_offset, slice.send_size, operand_rows)) return {};
  return MakeStatus(Code::kInvalidArgument,
                    "input_offsets[%llu] + send_sizes[%llu] is %lld + %lld, but operand has %llu "
                    "rows; send rows that it has",
                    at, at, Shown(slice.input_offset), Shown(slice.send_size),
                    static_cast<unsigned long long>(operand_rows));
}

// Gives each slice for another rank its place in the stage.
void PlanStage(uint32_t rank, RankSlices* own, std::vector<StagedRun>* runs) {
  std::vector<StageSlice*> sent;
  for (uint64_t i = 0; i < own->slices.size(); ++i) {
    StageSlice& slice = own->slices[i];
    if (slice.send_size != 0 && i / own->header.slices_per_rank != rank) sent.push_back(&slice);
  }
  std::sort(sent.begin(), sent.end(), [](const StageSlice* a, const StageSlice* b) {
    return a->input_offset < b->input_offset;
  });
  int64_t num_staged = 0;
  for (StageSlice* const slice : sent) {
    const int64_t end = slice->input_offset + slice->send_size;
    if (runs->empty() || slice->input_offset > runs->back().end) {
      runs->push_back({slice->input_offset, slice->input_offset, num_staged});
    }
    StagedRun& run = runs->back();
    slice->staged_row = run.staged_row + slice->input_offset - run.first;
    num_staged += std::max<int64_t>(end - run.end, 0);
    run.end = std::max(run.end, end);
  }
  own->header.staged_rows = static_cast<uint64_t>(num_staged);
}

// Of the slices that rank `to` receives from all.
Status CheckOverlap(std::span<const RankSlices> all, uint64_t to) {
  struct Landing {
    int64_t begin;
    int64_t end;
    uint64_t from;
  };
  std::vector<Landing> landings;
  for (uint64_t from = 0; from < all.size(); ++from) {
    for (uint64_t number = 0; number < all[from].header.slices_per_rank; ++number) {
      const StageSlice& slice = all[from].at(to, number);
      if (slice.send_size == 0) continue;
      landings.push_back({slice.output_offset, slice.output_offset + slice.send_size, from});
    }
  }
  const auto before = [](const Landing& a, const Landing& b) { return a.begin < b.begin; };
  if (!std::is_sorted(landings.begin(), landings.end(), before)) {
    std::stable_sort(landings.begin(), landings.end(), before);
  }
  for (size_t i = 1; i < landings.size(); ++i) {
    const Landing& first = landings[i - 1];
    const Landing& second = landings[i];
    if (second.begin >= first.end) continue;
    return MakeStatus(Code::kInvalidArgument,
                      "rows [%lld, %lld) from rank %llu and [%lld, %lld) from rank %llu overlap in "
                      "the output of rank %llu; give each slice rows of its own by output_offsets",
                      Shown(first.begin), Shown(first.end),
                      static_cast<unsigned long long>(first.from), Shown(second.begin),
                      Shown(second.end), static_cast<unsigned long long>(second.from),
                      static_cast<unsigned long long>(to));
  }
  return {};
}

// Of slice `number` from one rank to another.
Status CheckSlice(std::span<const RankSlices> all, uint64_t from, uint64_t to, uint64_t number) {
  const StageSlice& slice = all[from].at(to, number);
  const int64_t expected = all[to].at(from, number).recv_size;
  const uint64_t slices_per_rank = all[from].header.slices_per_rank;
  const unsigned long long sent = to * slices_per_rank + number;
  const unsigned long long received = from * slices_per_rank + number;
  const auto sender = static_cast<unsigned long long>(from);
  const auto receiver = static_cast<unsigned long long>(to);
  if (slice.send_size != expected) {
    return MakeStatus(Code::kInvalidArgument,
                      "send_sizes[%llu] of rank %llu is %lld, but recv_sizes[%llu] of rank %llu is "
                      "%lld; recv_sizes must be what the other ranks send",
                      sent, sender, Shown(slice.send_size), received, receiver, Shown(expected));
  }
  if (slice.send_size == 0) return {};
  const uint64_t rows = all[to].header.output_rows;
  if (slice.output_offset >= 0 && Fits(slice.output_offset, slice.send_size, rows)) return {};
  return MakeStatus(
      Code::kInvalidArgument,
      "output_offsets[%llu] + send_sizes[%llu] of rank %llu is %lld + %lld, but output "
      "of rank %llu has %llu rows; make it larger or send less",
      sent, sent, sender, Shown(slice.output_offset), Shown(slice.send_size), receiver,
      static_cast<unsigned long long>(rows));
}

}  // namespace

Status ReadSlices(const epd_ragged_args& args, uint32_t num_ranks, RankSlices* own,
                  std::vector<StagedRun>* runs) {
  if (Status s = CheckArguments(args); !s.ok()) return s;
  own->header = {.magic = kSliceStageMagic,
                 .num_ranks = num_ranks,
                 .slices_per_rank = args.slices_per_rank,
                 .row_bytes = args.row_bytes,
                 .operand_rows = args.operand_rows,
                 .output_rows = args.output_rows,
                 .staged_rows = 0};
  const Indices input_offsets(args.input_offsets, args.index_bytes);
  const Indices send_sizes(args.send_sizes, args.index_bytes);
  const Indices output_offsets(args.output_offsets, args.index_bytes);
  const Indices recv_sizes(args.recv_sizes, args.index_bytes);
  own->slices.resize(uint64_t{num_ranks} * args.slices_per_rank);
  for (uint64_t i = 0; i < own->slices.size(); ++i) {
    own->slices[i] = {input_offsets[i], send_sizes[i], output_offsets[i], recv_sizes[i], 0};
    if (Status s = CheckOwn(own->slices[i], i, args.operand_rows); !s.ok()) return s;
  }
  PlanStage(args.rank, own, runs);
  return {};
}

Status LoadSlices(const StageRef& stage, uint32_t rank, uint32_t num_ranks, RankSlices* peer) {
  const auto damaged = [rank] {
    return MakeStatus(Code::kDataLoss, "the arena of rank %u does not hold its slices", rank);
  };
  SliceStageHeader& header = peer->header;
  if (stage.base == nullptr || stage.bytes < sizeof header) return damaged();
  std::memcpy(&header, stage.base, sizeof header);
  if (header.magic != kSliceStageMagic || header.num_ranks != num_ranks ||
      header.slices_per_rank == 0 || header.slices_per_rank > kMaxSlicesPerRank) {
    return damaged();
  }
  const uint64_t num_slices = uint64_t{num_ranks} * header.slices_per_rank;
  const uint64_t rows_offset = SliceRowsOffset(num_slices);
  if (stage.bytes < rows_offset || header.row_bytes == 0 ||
      header.staged_rows > (stage.bytes - rows_offset) / header.row_bytes) {
    return damaged();
  }
  peer->slices.resize(num_slices);
  std::memcpy(peer->slices.data(), static_cast<const char*>(stage.base) + sizeof header,
              num_slices * sizeof(StageSlice));
  for (uint64_t i = 0; i < num_slices; ++i) {
    const StageSlice& slice = peer->slices[i];
    if (slice.send_size == 0) continue;
    const bool staged = i / header.slices_per_rank != rank;
    if (slice.send_size < 0 ||
        (staged &&
         (slice.staged_row < 0 || !Fits(slice.staged_row, slice.send_size, header.staged_rows)))) {
      return damaged();
    }
  }
  return {};
}

Status CheckSlices(std::span<const RankSlices> all, bool may_overlap) {
  for (size_t rank = 1; rank < all.size(); ++rank) {
    const SliceStageHeader& first = all[0].header;
    const SliceStageHeader& other = all[rank].header;
    if (first.slices_per_rank == other.slices_per_rank && first.row_bytes == other.row_bytes) {
      continue;
    }
    return MakeStatus(Code::kInvalidArgument,
                      "rank 0 calls with %u slices for each rank and rows of %llu bytes, rank %zu "
                      "with %u and %llu; call with arrays of the same shapes on all ranks",
                      first.slices_per_rank, static_cast<unsigned long long>(first.row_bytes), rank,
                      other.slices_per_rank, static_cast<unsigned long long>(other.row_bytes));
  }
  for (uint64_t from = 0; from < all.size(); ++from) {
    for (uint64_t to = 0; to < all.size(); ++to) {
      for (uint64_t number = 0; number < all[0].header.slices_per_rank; ++number) {
        if (Status s = CheckSlice(all, from, to, number); !s.ok()) return s;
      }
    }
  }
  for (uint64_t to = 0; !may_overlap && to < all.size(); ++to) {
    if (Status s = CheckOverlap(all, to); !s.ok()) return s;
  }
  return {};
}

}  // namespace epd::client
