#include "daemon/worker/shell/outcome_records.h"

#include "absl/strings/str_cat.h"
#include "daemon/shared_memory/pages.h"
#include "proto/epd/v1/text.h"
#include "proto/failpoint/failpoint.h"

namespace epd {

absl::StatusOr<OutcomeRecords> OutcomeRecords::Open(const UniqueFd& fd) {
  absl::StatusOr<Mapping> mapping = Mapping::Open(fd, sizeof(shm::RecordsHeader));
  if (!mapping.ok()) return mapping.status();
  OutcomeRecords records;
  if (!shm::RecordsView::Open(mapping->data(), mapping->bytes(), &records.view_)) {
    const auto& header = *static_cast<const shm::RecordsHeader*>(mapping->data());
    return absl::DataLossError(absl::StrCat(
        "the records segment has version ", header.version, ", ", header.slots_per_session,
        " slots a session and ", mapping->bytes(), " bytes, expected version ",
        shm::kSegmentVersion, " and what fits it; epd and epd-worker are of different builds"));
  }
  records.mapping_ = *std::move(mapping);
  records.view_.SetTouched(0);  // A worker that was killed may have left it.
  return records;
}

absl::Status OutcomeRecords::MakePageOf(uint32_t record_index, uint32_t slot) const {
  const shm::SlotRecord& record = Of(record_index, slot);
  return MakePages(&record, &record + 1);
}

// The operation is cleared first: a death in between leaves an id that no open word carries.
void OutcomeRecords::WriteClaim(uint32_t record_index, uint32_t slot, shm::Step step, uint32_t id) {
  shm::SlotRecord& record = Of(record_index, slot);
  record.op_id.store(0, std::memory_order_release);
  record.claim.store((uint64_t{static_cast<uint32_t>(step)} << 32) | id, std::memory_order_release);
}

uint32_t OutcomeRecords::LastClaim(uint32_t record_index, uint32_t slot) const {
  return static_cast<uint32_t>(Of(record_index, slot).claim.load(std::memory_order_acquire));
}

void OutcomeRecords::Link(uint32_t record_index, uint32_t slot, OperationId operation) {
  Of(record_index, slot).op_id.store(operation.value, std::memory_order_release);
}

void OutcomeRecords::OpenOperation(OperationId operation) {
  EPD_FAILPOINT("worker.record.open");
  shm::OperationRecord& record = Of(operation);
  record.outcome.store(static_cast<uint32_t>(shm::Outcome::kUndecided), std::memory_order_relaxed);
  record.code = 0;
  record.cause[0] = '\0';
  record.op_id.store(operation.value, std::memory_order_release);
}

void OutcomeRecords::Decide(OperationId operation, const absl::Status& status) {
  shm::OperationRecord& record = Of(operation);
  record.code = static_cast<uint32_t>(status.code());
  text::Write(status.message(), record.cause);
  const shm::Outcome outcome = status.ok() ? shm::Outcome::kGood : shm::Outcome::kFailed;
  EPD_FAILPOINT("worker.record.decide");
  record.outcome.store(static_cast<uint32_t>(outcome), std::memory_order_release);
  EPD_FAILPOINT("worker.record.decided");
}

void OutcomeRecords::CloseOperation(OperationId operation) {
  EPD_FAILPOINT("worker.record.close");
  Of(operation).op_id.store(0, std::memory_order_release);
}

}  // namespace epd
