#include "daemon/worker/shell/memory_watch.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace epd {
namespace {

// While there is too little, and before pages are made.
constexpr absl::Duration kLookAgain = absl::Seconds(1);
// Made since the last look; with the next piece, well below what others are left.
constexpr uint64_t kMadeUnseen = uint64_t{8} << 20;
constexpr absl::Duration kLines = absl::Minutes(1);

std::string Describe(const CgroupLimit& limit) {
  return absl::StrCat(limit.file, " allows ", limit.limit, " bytes, of which ", limit.used,
                      " are in use and ", BytesForOthers(limit.limit),
                      " are left to epd and its clients");
}

}  // namespace

uint64_t BytesForOthers(uint64_t limit_bytes) {
  constexpr uint64_t kMost = uint64_t{64} << 20;
  constexpr uint64_t kPart = 16;
  return std::min(kMost, limit_bytes / kPart);
}

uint64_t ShortBytes(uint64_t budget_bytes, uint64_t present_bytes, const CgroupLimit& limit) {
  const uint64_t others = BytesForOthers(limit.limit);
  const uint64_t more = limit.room() > others ? limit.room() - others : 0;
  const uint64_t allowed = present_bytes + std::min(more, UINT64_MAX - present_bytes);
  return budget_bytes > allowed ? budget_bytes - allowed : 0;
}

void MemoryWatch::Look(uint64_t present_bytes, absl::Time now) {
  std::vector<CgroupLimit> limits = MemoryLimits(read_);
  if (const auto machine = MachineMemory(read_); machine.has_value()) limits.push_back(*machine);
  limit_ = LeastRoom(limits);
  looked_ = now;
  made_since_ = 0;
  const uint64_t before = std::exchange(
      short_bytes_, limit_.has_value() ? ShortBytes(budget_bytes_, present_bytes, *limit_) : 0);
  next_look_ = short_bytes_ > 0 ? now + kLookAgain : absl::InfiniteFuture();
  if (short_bytes_ == 0) {
    why_.clear();
    return;
  }
  why_ = absl::StrCat("of staging_bytes, ", budget_bytes_, ", only ", budget_bytes_ - short_bytes_,
                      " can be had now: ", Describe(*limit_),
                      "; raise that limit, or have others use less memory");
  if (before == 0) said_ = false;
}

absl::Status MemoryWatch::MayMake(uint64_t bytes, uint64_t present_bytes, absl::Time now) {
  if (made_since_ >= kMadeUnseen || now >= looked_ + kLookAgain) Look(present_bytes - bytes, now);
  if (!limit_.has_value()) return absl::OkStatus();
  const uint64_t least = BytesForOthers(limit_->limit) / 2;
  if (limit_->room() < made_since_ + bytes + least) {
    Look(present_bytes - bytes, now);
    if (limit_.has_value() && limit_->room() < bytes + BytesForOthers(limit_->limit) / 2) {
      return absl::ResourceExhaustedError(
          absl::StrCat(Describe(*limit_),
                       "; raise that limit, have others use less memory, or "
                       "send fewer tokens per call [EPD-1105]"));
    }
  }
  made_since_ += bytes;
  return absl::OkStatus();
}

std::optional<std::string> MemoryWatch::TakeLine(absl::Time now) {
  if (said_ || now < may_say_ || short_bytes_ == 0) return std::nullopt;
  said_ = true;
  may_say_ = now + kLines;
  return absl::StrCat("memory is short: ", why_);
}

}  // namespace epd
