#include "daemon/worker/engine/stream_round.h"

#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/epd/v1/operation_kind.h"
#include "proto/epd/v1/text.h"

namespace epd {
namespace {

std::string DescribeFault(const shm::SlotRequest& request, const GroupSpec& spec) {
  if (request.kind == shm::Kind::kPrepare) {
    const uint64_t report = request.announce.route_report;
    if (report == UINT64_MAX) return "";
    return absl::StrCat(
        "topk_idx names an expert that the group does not have, or too many tokens (fault ",
        report & 0xff, " at index ", report >> 8, ")");
  }
  if (request.kind == shm::Kind::kDispatch || spec.drop_on_overflow) return "";
  if (request.announce.demand <= request.recv_capacity) return "";
  return absl::StrCat("recv_capacity: got ", request.recv_capacity, " slots, the plan's rows ",
                      Scatters(request.kind) ? "need " : "fill ", request.announce.demand);
}

}  // namespace

shm::SlotRequest StreamRound::Count(const shm::SlotRequest& request) {
  shm::SlotRequest counted = request;
  const uint32_t site[] = {round_, request.ordinal + 1};
  static_assert(sizeof site < sizeof counted.program);
  uint8_t bytes[sizeof site];
  std::memcpy(bytes, site, sizeof site);
  uint8_t* const tail = counted.program + sizeof counted.program - sizeof site;
  for (size_t i = 0; i < sizeof site; ++i) tail[i] ^= bytes[i];
  ProgramId program;
  std::memcpy(program.data(), counted.program, program.size());
  counted.execution = synchronising_ ? 0 : num_calls_[{Rank(request.rank), program}]++;
  counted.occurrence = 0;
  return counted;
}

void StreamRound::Synchronise(const std::vector<Call>& waiting) {
  synchronising_ = false;
  num_calls_.clear();
  for (const Call& call : waiting) num_calls_[call] = 1;
}

void StreamRound::Restart() {
  synchronising_ = true;
  ++round_;
}

shm::SlotRequest ReportFault(const shm::SlotRequest& request, const GroupSpec& spec) {
  shm::SlotRequest reported = request;
  const std::string fault = DescribeFault(request, spec);
  if (fault.empty()) return reported;
  reported.error_code = static_cast<uint32_t>(absl::StatusCode::kInvalidArgument);
  text::Write(fault, reported.error);
  return reported;
}

}  // namespace epd
