// What a kernel or a plan check found wrong, as numbers; text is made only when somebody asks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "proto/epd/v1/code.h"

namespace epd {

// Which check failed. `got` and `expected` of KernelError are in the unit named here.
enum class KernelFault : std::int32_t {
  kNone = 0,
  // Arguments of this rank's call (kInvalidArgument).
  kNullArgument,    // `text` names it
  kNumRanks,        // ranks
  kNumExperts,      // experts
  kTopK,            // routes per token
  kAlignment,       // slots
  kMaxTokens,       // tokens
  kExpertOwner,     // got: owner of expert `index`; expected: ranks
  kRank,            // got: rank; expected: ranks
  kNumTokens,       // tokens; expected is the plan's or the maximum
  kExpertIndex,     // got: topk_idx[token, k]; expected: E
  kRowBytes,        // bytes; expected: the least, or the element size it must divide by
  kCapacity,        // slots
  kDataType,        // got: value of DataType
  kIndexType,       // got: value of IndexType
  kBufferTooSmall,  // bytes
  kMisaligned,      // got: address modulo `expected`
  kSimdLevel,       // `text` is the level that is unknown or not on this machine
  kTooManySlots,    // slots; they must fit in an int32
  // Counts exchanged by prepare.
  kCountRange,     // got: counts[rank, index]; expected: T_max * K
  kCountMismatch,  // got: counts[rank, index]; expected: what this rank's topk_idx has
  // handle_mem, the routing plan.
  kPlanMagic,        // u64
  kPlanVersion,      // version
  kPlanHeaderBytes,  // bytes
  kPlanBytes,        // bytes
  kPlanTruncated,    // bytes
  kPlanChecksum,     // checksum
  kPlanGroup,        // group id
  kPlanEpoch,        // epoch (kAborted)
  kPlanId,           // prepare's operation id
  kPlanRank,         // rank
  kPlanNumRanks,     // ranks
  kPlanNumExperts,   // experts
  kPlanTopK,         // routes per token
  kPlanAlignment,    // slots
  kPlanMaxTokens,    // tokens
  kPlanNumTokens,    // tokens
  kPlanRoute,        // a slot table entry out of range; got: the value, expected: its bound
  // A peer's stage; `rank` is the peer (kDataLoss).
  kStageTruncated,   // bytes
  kStageMagic,       // u64
  kStageVersion,     // version
  kStagePlanId,      // prepare's operation id
  kStageRank,        // rank
  kStageNumRanks,    // ranks
  kStageRowBytes,    // bytes
  kStageNumRows,     // rows
  kStageWeights,     // 0 or 1
  kStageOffset,      // bytes from the start of the stage
  kStageRouteBegin,  // routes
  kStageRouteCount,  // routes for this rank; expected: what the counts say
  kStageRouteRow,    // row of route `index`; expected: rows staged
  kStageRouteSlot,   // slot of route `index`; expected: the plan's slot
  // Demand over capacity without drops (kResourceExhausted).
  kOverflow,  // slots: got is the demand, expected the capacity
};

// 0 cost on success: two enums and plain numbers. Fields that a fault does not use are -1 or 0.
//   INVALID_ARGUMENT    the call is wrong: fix it
//   ABORTED             the plan is of another epoch: prepare again
//   RESOURCE_EXHAUSTED  more rows than slots, and drops are not allowed
//   DATA_LOSS           a plan or a peer's stage is corrupt
struct [[nodiscard]] KernelError {
  Code code = Code::kOk;
  KernelFault fault = KernelFault::kNone;
  std::int32_t rank = -1;
  std::int32_t k = -1;
  std::int64_t token = -1;
  std::int64_t index = -1;
  std::uint64_t got = 0;  // two's complement where the value is signed
  std::uint64_t expected = 0;
  const char* text = nullptr;  // borrowed: a literal, or what the caller passed in

  bool ok() const { return code == Code::kOk; }
};

// Writes one line without the code's name: what was got, what was expected, what to do. Always
// ends in NUL; truncates to `bytes`. Returns the length the whole text needs, like snprintf.
std::size_t FormatKernelError(const KernelError& error, char* buffer, std::size_t bytes);
// The same as a string.
std::string ToString(const KernelError& error);
// What was looked at, in a few words, without numbers.
const char* Describe(KernelFault fault);

}  // namespace epd
