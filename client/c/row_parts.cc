#include "client/c/row_parts.h"

#include <cstring>
#include <string>

#include "client/c/digest.h"

namespace epd::client {
namespace {

using Ull = unsigned long long;

Status CheckMore(const epd_scatter_args& args) {
  if (args.num_more > EPD_MAX_MORE_ROWS) {
    return MakeStatus(Code::kInvalidArgument,
                      "num_more: got %u arrays, at most %d may travel with the first",
                      args.num_more, EPD_MAX_MORE_ROWS);
  }
  if (args.more == nullptr) {
    return MakeStatus(Code::kInvalidArgument, "more is NULL, num_more is %u", args.num_more);
  }
  for (uint32_t i = 0; i < args.num_more; ++i) {
    const epd_more_rows& more = args.more[i];
    if (DtypeBytes(more.dtype) == 0) {
      return MakeStatus(Code::kInvalidArgument, "more[%u].dtype: %d is no epd_dtype", i,
                        static_cast<int>(more.dtype));
    }
    if (more.hidden == 0) {
      return MakeStatus(Code::kInvalidArgument, "more[%u].hidden: got 0, expected 1 or more", i);
    }
  }
  return {};
}

// Tells apart, as far as 8 bits can, what ranks may not divide differently.
uint32_t TagOf(const epd_scatter_args& args) {
  std::string sizes;
  const auto add = [&sizes](uint32_t dtype, uint32_t hidden) {
    sizes += std::to_string(dtype) + 'x' + std::to_string(hidden) + ' ';
  };
  add(args.dtype, args.hidden);
  for (uint32_t i = 0; i < args.num_more; ++i) add(args.more[i].dtype, args.more[i].hidden);
  return DigestOf(sizes)[0];
}

uint64_t Stride(const RowPart& part) { return StageRowBytes(part.slice, part.row_bytes); }

}  // namespace

Status DivideRows(const epd_scatter_args& args, RowsArguments* rows, std::vector<RowPart>* parts) {
  parts->clear();
  const uint64_t element = DtypeBytes(args.dtype);
  parts->push_back({args.tokens, args.recv_tokens, args.hidden * element, {}});
  if (args.num_more == 0 || element == 0 || args.hidden == 0) return {};
  if (Status s = CheckMore(args); !s.ok()) return s;
  uint64_t bytes = parts->front().row_bytes;
  for (uint32_t i = 0; i < args.num_more; ++i) {
    const epd_more_rows& more = args.more[i];
    const uint64_t row_bytes = more.hidden * DtypeBytes(more.dtype);
    parts->push_back(
        {more.tokens, more.recv_tokens, row_bytes, {.offset = bytes, .skip_weights = true}});
    bytes += row_bytes;
  }
  if (bytes > UINT32_MAX) {
    return MakeStatus(Code::kInvalidArgument, "rows of %llu bytes in %zu arrays: at most %u bytes",
                      static_cast<Ull>(bytes), parts->size(), UINT32_MAX);
  }
  for (RowPart& part : *parts) part.slice.of_bytes = bytes;
  rows->dtype = EPD_DTYPE_OPAQUE(1, TagOf(args));
  rows->hidden = static_cast<uint32_t>(bytes);
  return {};
}

void PackRows(const RowPart& part, uint64_t num_rows, std::byte* stage) {
  if (num_rows == 0) return;
  const auto* from = static_cast<const std::byte*>(part.tokens);
  if (Stride(part) == part.row_bytes) {
    std::memcpy(stage, from, num_rows * part.row_bytes);
    return;
  }
  stage += part.slice.offset;
  for (uint64_t i = 0; i < num_rows; ++i) {
    std::memcpy(stage + i * Stride(part), from + i * part.row_bytes, part.row_bytes);
  }
}

void UnpackRows(const RowPart& part, uint64_t num_rows, const std::byte* stage) {
  if (num_rows == 0) return;
  auto* to = static_cast<std::byte*>(part.recv_tokens);
  if (Stride(part) == part.row_bytes) {
    std::memcpy(to, stage, num_rows * part.row_bytes);
    return;
  }
  stage += part.slice.offset;
  for (uint64_t i = 0; i < num_rows; ++i) {
    std::memcpy(to + i * part.row_bytes, stage + i * Stride(part), part.row_bytes);
  }
}

}  // namespace epd::client
