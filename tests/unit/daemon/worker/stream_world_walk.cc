// What a walk over all orders of events asks of the world.
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/unit/daemon/worker/stream_world.h"

namespace epd::streams {

bool StreamWorld::IsArmed(uint32_t slot) const {
  const uint32_t of_rank = num_sites_ * 3;
  return ranks_[slot / of_rank].sites[slot % of_rank / 3].slots[slot % 3].word == shm::kArmed;
}

bool StreamWorld::MayHappen(Event event, const Limits& limits) const {
  switch (event) {
    case Event::kStream0:
    case Event::kStream1: {
      const Rank& rank = ranks_[event == Event::kStream1];
      const Site& site = rank.sites[rank.site];
      // Uses that the ranks have lost need not be as many on each: who is done goes on for the other.
      const bool enough = rank.num_cycles >= limits.num_cycles;
      if (rank.pc == Pc::kTell && enough && (AllEnded(limits) || rank.mapped != formation_)) {
        return false;
      }
      if (rank.pc == Pc::kWaitAnnounce) return shm::Done(site.slots[0].word) >= 1;
      if (rank.pc == Pc::kWaitPublish) return shm::Done(site.slots[1].word) >= 1;
      return true;
    }
    case Event::kClaim: {
      if (scan_ != 0) return true;
      for (uint32_t slot = 0; slot < kNumRanks * num_sites_ * 3; ++slot) {
        if (IsArmed(slot)) return true;
      }
      return false;
    }
    case Event::kMoveGood:
      return scan_ == 0 && moving_.has_value();
    case Event::kMoveBad:
      return scan_ == 0 && moving_.has_value() && num_replaced_ == 0;
    case Event::kRemap0:
    case Event::kRemap1: {
      const Rank& rank = ranks_[event == Event::kRemap1];
      const bool busy =
          rank.touching || rank.pc == Pc::kCopy || rank.pc == Pc::kCopyLate || rank.pc == Pc::kRead;
      return rank.mapped != formation_ && !busy;
    }
    case Event::kReplace:
      return num_replaced_ < limits.num_replacements;
  }
  return false;
}

std::optional<StreamWorld::Event> StreamWorld::Unseen(const Limits& limits) const {
  for (const Event event : {Event::kStream0, Event::kStream1}) {
    const Rank& rank = ranks_[event == Event::kStream1];
    const Site& site = rank.sites[rank.site];
    const bool skips_copy = rank.pc == Pc::kCopy && shm::Done(site.slots[0].word) > 1;
    const bool skips_read = rank.pc == Pc::kRead && shm::Done(site.slots[1].word) > 1;
    const bool tells = rank.pc == Pc::kTell && rank.num_cycles < limits.num_cycles;
    if (!rank.touching && (tells || skips_copy || skips_read)) return event;
  }
  return std::nullopt;
}

void StreamWorld::Happen(Event event) {
  switch (event) {
    case Event::kStream0:
    case Event::kStream1:
      StreamStep(event == Event::kStream1 ? 1 : 0);
      break;
    case Event::kClaim:
      // Slots that are not armed are passed over: as if they had been looked at when this one is.
      while (!IsArmed(scan_) && scan_ + 1 < kNumRanks * num_sites_ * 3) ++scan_;
      ScanNext();
      break;
    case Event::kMoveGood:
    case Event::kMoveBad:
      FinishMove(event == Event::kMoveGood);
      break;
    case Event::kRemap0:
    case Event::kRemap1:
      Remap(event == Event::kRemap1 ? 1 : 0);
      break;
    case Event::kReplace:
      Replace();
      break;
  }
  CheckOverflows();
}

// The engine follows from what it has claimed of each rank, in which order that rank's streams armed it, and
// from what its operations wait for.
std::string StreamWorld::Fingerprint() const {
  std::string text = absl::StrCat(scan_, "|", formation_, "|", num_replaced_, "|",
                                  moving_.has_value() ? moving_->value : 0, "|");
  for (uint32_t r = 0; r < kNumRanks; ++r) {
    const Rank& rank = ranks_[r];
    absl::StrAppend(&text, rank.site, ",", static_cast<int>(rank.pc), ",", rank.num_cycles, ",",
                    rank.mapped, ",", rank.touching, ",", rank.touched.value, ",",
                    rank.in_region.value, ",", rank.out.value, ",", taken_[r], ";");
    for (const OperationId from : rank.pushed) absl::StrAppend(&text, from.value, ",");
    for (const Site& site : rank.sites) {
      for (const Slot& slot : site.slots) {
        const bool claimed = shm::Ready(slot.word) >= shm::kFirstClaimId;
        absl::StrAppend(&text, claimed ? "c" : absl::StrCat(slot.word), ",", slot.linked.value, ",",
                        slot.answered_as.value, ",", slot.request.formation, ",",
                        slot.request.announce.demand, ";");
      }
    }
  }
  for (const ExchangeSnapshot::OperationLine& line : exchange_->Snapshot(now_).operations) {
    absl::StrAppend(&text, line.operation, line.phase, line.key, line.region_bytes, ":");
    for (const epd::Rank rank : line.waiting_for) absl::StrAppend(&text, rank.value, ",");
  }
  return text;
}

bool StreamWorld::AllEnded(const Limits& limits) const {
  for (const Rank& rank : ranks_) {
    if (rank.num_cycles < limits.num_cycles) return false;
  }
  return true;
}

}  // namespace epd::streams
