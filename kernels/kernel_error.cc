#include "kernels/kernel_error.h"

#include <cinttypes>
#include <cstdarg>
#include <cstdio>

#include "kernels/simd.h"

namespace epd {
namespace {

enum class Number { kSigned, kUnsigned, kHex, kText };

// "<what>: got <number>, <bound> <number>; <advice>", with rank, token, k and index where set.
struct FaultText {
  KernelFault fault;
  const char* what;
  Number number = Number::kSigned;
  const char* bound = "expected";  // relation of `expected` to what would have been right
  const char* advice = nullptr;    // null: that of the fault's kind
};

constexpr const char* kFixCall = "fix the call";
constexpr const char* kPrepareAgain = "use the handle_mem that this call's prepare returned";
constexpr const char* kReportPeer = "the peer's staging memory is damaged or not of this operation";

constexpr FaultText kFaultTexts[] = {
    {KernelFault::kNullArgument, "a required argument is missing", Number::kText, ""},
    {KernelFault::kNumRanks, "number of ranks", Number::kSigned, "from 1 to"},
    {KernelFault::kNumExperts, "number of experts", Number::kSigned, "from 1 to"},
    {KernelFault::kTopK, "top_k", Number::kSigned, "from 1 to"},
    {KernelFault::kAlignment, "alignment in slots", Number::kSigned,
     "0 or a power of two of at most"},
    {KernelFault::kMaxTokens, "max_tokens", Number::kSigned, "from 0 to"},
    {KernelFault::kExpertOwner, "owner of an expert", Number::kSigned, "from 0 to below"},
    {KernelFault::kRank, "rank", Number::kSigned, "from 0 to below"},
    {KernelFault::kNumTokens, "tokens of the call", Number::kSigned, "expected or at most",
     "pass the tokens that prepare was called for"},
    {KernelFault::kExpertIndex, "expert index in topk_idx", Number::kSigned, "must be below",
     "use an index below the number of experts, or a negative one for no route"},
    {KernelFault::kRowBytes, "row bytes", Number::kUnsigned, "expected at least or a multiple of"},
    {KernelFault::kCapacity, "receive capacity in slots", Number::kSigned, "from 0 to"},
    {KernelFault::kDataType, "data type", Number::kSigned, "expected 1 (float32) to",
     "use float32, bfloat16 or float16"},
    {KernelFault::kIndexType, "index type", Number::kSigned, "expected 1 (int32) to",
     "use int32 or int64"},
    {KernelFault::kBufferTooSmall, "bytes of a buffer", Number::kUnsigned, "expected at least"},
    {KernelFault::kMisaligned, "address remainder", Number::kUnsigned, "expected 0 modulo",
     "align the buffer"},
    {KernelFault::kTooManySlots, "slots of a receive buffer", Number::kSigned, "at most",
     "route fewer tokens or lower the alignment"},
    {KernelFault::kCountRange, "number of routes to expert", Number::kSigned, "from 0 to",
     "the counts that a rank sent are damaged"},
    {KernelFault::kCountMismatch, "announced routes to expert", Number::kSigned, "topk_idx has",
     "pass the topk_idx that the counts were made from"},
    {KernelFault::kPlanMagic, "magic of handle_mem", Number::kHex},
    {KernelFault::kPlanVersion, "version of the routing plan", Number::kUnsigned},
    {KernelFault::kPlanHeaderBytes, "header bytes of the routing plan", Number::kUnsigned},
    {KernelFault::kPlanBytes, "total bytes of the routing plan", Number::kUnsigned},
    {KernelFault::kPlanTruncated, "bytes of handle_mem", Number::kUnsigned, "expected at least"},
    {KernelFault::kPlanChecksum, "checksum of the routing plan", Number::kHex, "expected",
     "handle_mem was overwritten since prepare; prepare again"},
    {KernelFault::kPlanGroup, "group id of the routing plan", Number::kHex, "expected",
     "handle_mem belongs to another group; prepare in this one [EPD-1004]"},
    {KernelFault::kPlanEpoch, "epoch of the routing plan", Number::kUnsigned, "expected",
     "the group was formed anew since prepare; prepare again [EPD-1005]"},
    {KernelFault::kPlanId, "plan id", Number::kUnsigned},
    {KernelFault::kPlanRank, "rank of the routing plan"},
    {KernelFault::kPlanNumRanks, "ranks in the routing plan"},
    {KernelFault::kPlanNumExperts, "experts in the routing plan"},
    {KernelFault::kPlanTopK, "top_k of the routing plan"},
    {KernelFault::kPlanAlignment, "alignment of the routing plan"},
    {KernelFault::kPlanMaxTokens, "max_tokens of the routing plan"},
    {KernelFault::kPlanNumTokens, "tokens or routes in the routing plan", Number::kSigned,
     "at most"},
    {KernelFault::kPlanRoute, "a route of the routing plan", Number::kSigned, "must be below"},
    {KernelFault::kStageTruncated, "bytes of a stage", Number::kUnsigned, "expected at least"},
    {KernelFault::kStageMagic, "magic of a stage", Number::kHex},
    {KernelFault::kStageVersion, "version of a stage", Number::kUnsigned},
    {KernelFault::kStagePlanId, "plan id of a stage", Number::kUnsigned},
    {KernelFault::kStageRank, "rank of a stage"},
    {KernelFault::kStageNumRanks, "ranks in a stage", Number::kUnsigned},
    {KernelFault::kStageRowBytes, "row bytes of a stage", Number::kUnsigned},
    {KernelFault::kStageNumRows, "rows or routes of a stage", Number::kUnsigned,
     "expected or at most"},
    {KernelFault::kStageWeights, "weights in a stage", Number::kUnsigned},
    {KernelFault::kStageOffset, "an offset or size in a stage", Number::kUnsigned},
    {KernelFault::kStageRouteBegin, "an end of the routes for this rank", Number::kUnsigned,
     "at most"},
    {KernelFault::kStageRouteCount, "routes for this rank", Number::kUnsigned, "the counts say"},
    {KernelFault::kStageRouteRow, "row of a route", Number::kUnsigned, "must be below"},
    {KernelFault::kStageRouteSlot, "slot of a route", Number::kUnsigned, "the plan says"},
    {KernelFault::kOverflow, "slots demanded", Number::kSigned, "capacity is",
     "raise recv_capacity_per_rank, or allow drops"},
};

// Faults stand in the order of their causes: the call, then the plan, then a peer's stage.
const char* AdviceOn(const FaultText& text) {
  if (text.advice != nullptr) return text.advice;
  if (text.fault >= KernelFault::kStageTruncated) return kReportPeer;
  return text.fault >= KernelFault::kPlanMagic ? kPrepareAgain : kFixCall;
}

const FaultText* FindText(KernelFault fault) {
  for (const FaultText& text : kFaultTexts) {
    if (text.fault == fault) return &text;
  }
  return nullptr;
}

// Appends with snprintf's accounting: `length` counts what the whole text needs.
struct Line {
  char* buffer;
  std::size_t bytes;
  std::size_t length = 0;

  __attribute__((format(printf, 2, 3))) void Add(const char* format, ...) {
    const std::size_t room = length < bytes ? bytes - length : 0;
    std::va_list args;
    va_start(args, format);
    const int added = std::vsnprintf(room > 0 ? buffer + length : nullptr, room, format, args);
    va_end(args);
    if (added > 0) length += static_cast<std::size_t>(added);
  }

  void AddNumber(Number number, std::uint64_t value) {
    if (number == Number::kHex) {
      Add("0x%016" PRIx64, value);
    } else if (number == Number::kUnsigned) {
      Add("%" PRIu64, value);
    } else {
      Add("%" PRId64, static_cast<std::int64_t>(value));
    }
  }
};

void AddPlace(const KernelError& error, Line* line) {
  if (error.rank >= 0) line->Add(" rank=%" PRId32, error.rank);
  if (error.token >= 0) line->Add(" token=%" PRId64, error.token);
  if (error.k >= 0) line->Add(" k=%" PRId32, error.k);
  if (error.index >= 0) line->Add(" index=%" PRId64, error.index);
}

void AddSimdLevels(const KernelError& error, Line* line) {
  line->Add("SIMD level '%s' is unknown or not on this machine; available: auto",
            error.text != nullptr ? error.text : "");
  for (const SimdLevel level : kAllSimdLevels) {
    if (SimdLevelSupported(level)) line->Add(", %s", SimdLevelName(level));
  }
}

}  // namespace

std::size_t FormatKernelError(const KernelError& error, char* buffer, std::size_t bytes) {
  Line line{buffer, bytes};
  if (bytes > 0) buffer[0] = '\0';
  const FaultText* text = FindText(error.fault);
  if (error.fault == KernelFault::kSimdLevel) {
    AddSimdLevels(error, &line);
  } else if (text == nullptr) {
    line.Add("%s", error.ok() ? "ok" : "unknown kernel fault");
  } else {
    line.Add("%s", text->what);
    AddPlace(error, &line);
    if (error.text != nullptr) line.Add(" (%s)", error.text);
    if (text->number != Number::kText) {
      line.Add(": got ");
      line.AddNumber(text->number, error.got);
      line.Add(", %s ", text->bound);
      line.AddNumber(text->number, error.expected);
    }
    line.Add("; %s", AdviceOn(*text));
  }
  return line.length;
}

const char* Describe(KernelFault fault) {
  const FaultText* const text = FindText(fault);
  return text != nullptr ? text->what : "unknown kernel fault";
}

std::string ToString(const KernelError& error) {
  char text[400];
  FormatKernelError(error, text, sizeof text);
  return text;
}

}  // namespace epd
