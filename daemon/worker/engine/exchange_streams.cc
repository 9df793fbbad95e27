// The steps of call sites in a GPU's stream: which use of which site each one belongs to.
#include <algorithm>
#include <cstring>
#include <set>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/worker/engine/cause_text.h"
#include "daemon/worker/engine/exchange.h"
#include "daemon/worker/engine/stream_site.h"
#include "proto/epd/v1/operation_kind.h"

namespace epd {
namespace {

absl::Status NoSite(const shm::SlotRequest& request) {
  return absl::InvalidArgumentError(absl::StrCat("the step names slot ", request.op_id,
                                                 " as its site's announce, expected less than ",
                                                 shm::kSlotsPerSession));
}

// What a call on a CPU finds wrong before it announces, and a stream's kernels only report. Of a dispatch
// that is too much for a rank all ranks hear as of an overflow.
std::string FaultOfStream(const shm::SlotRequest& request, const Tenant& tenant) {
  if (request.kind == shm::Kind::kPrepare) {
    if (request.demand == UINT64_MAX) return "";
    return absl::StrCat(
        "topk_idx names an expert that the group does not have, or too many tokens (fault ",
        request.demand & 0xff, " at index ", request.demand >> 8, ")");
  }
  if (request.kind == shm::Kind::kDispatch || tenant.start.spec.drop_on_overflow) return "";
  if (request.demand <= request.recv_capacity) return "";
  return absl::StrCat("recv_capacity: got ", request.recv_capacity, " slots, the plan's rows ",
                      Scatters(request.kind) ? "need " : "fill ", request.demand);
}

}  // namespace

void Exchange::TakeStream(const Submission& submission, const shm::SlotRequest& request,
                          absl::Time now) {
  if (request.step == shm::Step::kStreamAnnounce) {
    StreamSite& site = sites_[{submission.session, submission.slot}];
    if (site.expects == shm::Step::kStreamAnnounce && !site.operation) {
      return BeginStreamSubmission(site, submission, request, now);
    }
    // A slot has one open use, unless its client wrote over the word.
    if (site.held.has_value()) {
      Refuse(site.held->submission,
             ForStranger(absl::DataLossError("the op slot was written over"), site.held->request));
    }
    site.held = StreamSite::Held{submission, request};
    return;
  }
  if (request.op_id >= shm::kSlotsPerSession) {
    return Refuse(submission, ForStranger(NoSite(request), request));
  }
  const StreamSiteKey key{submission.session, static_cast<uint32_t>(request.op_id)};
  if (request.step == shm::Step::kStreamPublish) {
    StreamPublish(sites_[key], submission, request, now);
  } else {
    StreamPulled(key, submission, request);
  }
}

void Exchange::BeginStreamSubmission(StreamSite& site, const Submission& submission,
                                     const shm::SlotRequest& request, absl::Time now) {
  site.expects = shm::Step::kStreamPublish;
  site.cause = absl::OkStatus();
  Announce(submission, request, now);
}

void Exchange::StreamPublish(StreamSite& site, const Submission& submission,
                             const shm::SlotRequest& request, absl::Time now) {
  if (site.operation) {
    site.expects = shm::Step::kStreamPulled;
    shm::SlotRequest named = request;
    named.op_id = site.operation.value;
    return Publish(submission, named, now);
  }
  const absl::Status status =
      !site.cause.ok()
          ? site.cause
          : ForStranger(absl::AbortedError("an earlier worker ran the operation of this step"),
                        request);
  site.expects = shm::Step::kStreamPulled;
  effects_.push_back(AnswerSubmission{.submission = submission,
                                      .status = status,
                                      .operation = {},
                                      .region = {},
                                      .plan_id = 0,
                                      .plan_name = {},
                                      .repeats = !site.cause.ok()});
}

// Nobody waits for the answer. One that belongs to no good use, as of a failed one or of one that an
// earlier worker answered, ends nothing but itself.
void Exchange::StreamPulled(const StreamSiteKey& key, const Submission& submission,
                            const shm::SlotRequest& request) {
  StreamSite& site = sites_[key];
  const bool expected = site.expects == shm::Step::kStreamPulled;
  const auto found = operations_.find(site.operation);
  if (expected && found != operations_.end()) {
    Operation& operation = *found->second;
    const bool reads = request.rank < operation.parts.size() &&
                       operation.parts[request.rank].site == key.second &&
                       operation.parts[request.rank].state == PartState::kReading;
    if (reads) {
      site.expects = shm::Step::kStreamAnnounce;
      shm::SlotRequest named = request;
      named.op_id = site.operation.value;
      return Pulled(submission, named);
    }
  }
  Refuse(submission, absl::OkStatus());
  if (!expected || site.operation) return;
  site.expects = shm::Step::kStreamAnnounce;
  FreeSite(key);
}

// The use of the site is over, or its part in the operation is.
void Exchange::FreeSite(const StreamSiteKey& key) {
  const auto found = sites_.find(key);
  if (found == sites_.end()) return;
  StreamSite& site = found->second;
  site.operation = OperationId();
  if (site.expects == shm::Step::kStreamAnnounce && site.held.has_value()) {
    freed_sites_.push_back(key);
  }
}

void Exchange::TakeHeld(absl::Time now) {
  for (const StreamSiteKey& key : std::exchange(freed_sites_, {})) {
    const auto found = sites_.find(key);
    if (found == sites_.end() || !found->second.held.has_value()) continue;
    const StreamSite::Held held = *std::exchange(found->second.held, std::nullopt);
    BeginStreamSubmission(found->second, held.submission, held.request, now);
  }
}

// Nothing goes on that they could wait for.
void Exchange::RefuseHeld(const absl::Status& cause) {
  for (auto& [unused, site] : sites_) {
    if (!site.held.has_value()) continue;
    const StreamSite::Held held = *std::exchange(site.held, std::nullopt);
    Refuse(held.submission, ForStranger(cause, held.request));
  }
}

// Sites count for themselves: which of them run in one execution only the stream knows. In each round
// they are programs of their own, so that nothing of an earlier one is met.
shm::SlotRequest Exchange::CountStreamSubmission(Tenant& tenant, const shm::SlotRequest& request) {
  shm::SlotRequest counted = request;
  const uint32_t site[] = {tenant.stream_round, request.ordinal + 1};
  static_assert(sizeof site < sizeof counted.program);
  uint8_t bytes[sizeof site];
  std::memcpy(bytes, site, sizeof site);
  uint8_t* const tail = counted.program + sizeof counted.program - sizeof site;
  for (size_t i = 0; i < sizeof site; ++i) tail[i] ^= bytes[i];
  ProgramId program;
  std::memcpy(program.data(), counted.program, program.size());
  counted.execution =
      tenant.aligning ? 0 : tenant.stream_submissions[{Rank(request.rank), program}]++;
  counted.occurrence = 0;
  const std::string fault = FaultOfStream(request, tenant);
  if (request.kind == shm::Kind::kPrepare) counted.demand = 0;
  if (fault.empty()) return counted;
  counted.error_code = static_cast<uint32_t>(absl::StatusCode::kInvalidArgument);
  std::memset(counted.text, 0, sizeof counted.text);
  fault.copy(counted.text, sizeof counted.text - 1);
  return counted;
}

// The operation is called from streams that have not met yet.
bool Exchange::MayMeet(const Operation& operation) {
  return operation.tenant->aligning &&
         std::any_of(operation.parts.begin(), operation.parts.end(),
                     [](const Part& part) { return part.said.from_stream; });
}

// All ranks are at one call: from here on uses count, also those that wait at other calls.
void Exchange::EndAligning(const Operation& operation) {
  Tenant& tenant = *operation.tenant;
  tenant.aligning = false;
  tenant.stream_submissions.clear();
  for (uint32_t r = 0; r < operation.parts.size(); ++r) {
    tenant.stream_submissions[{Rank(r), operation.key.execution.program}] = 1;
  }
  for (const Operation* other : UndecidedOf(tenant)) {
    for (uint32_t r = 0; r < other->parts.size(); ++r) {
      if (!other->parts[r].site.has_value()) continue;
      tenant.stream_submissions[{Rank(r), other->key.execution.program}] = 1;
    }
  }
}

// When every rank waits and no two sets of calls meet, all but one call fail; the ranks that made them
// go on to their next ones, and so come to that one, or to an earlier one of the program, where they meet.
void Exchange::Align(Tenant& tenant) {
  std::vector<Operation*> waiting;
  std::set<Rank> ranks;
  for (Operation* operation : UndecidedOf(tenant)) {
    if (operation->phase != Phase::kGathering) continue;
    bool from_stream = false;
    for (uint32_t r = 0; r < operation->parts.size(); ++r) {
      const Part& part = operation->parts[r];
      if (part.state != PartState::kAnnounced || !part.said.from_stream) continue;
      from_stream = true;
      ranks.insert(Rank(r));
    }
    if (from_stream) waiting.push_back(operation);
  }
  if (waiting.size() < 2 || ranks.size() < tenant.start.members.size()) return;
  const auto first =
      std::min_element(waiting.begin(), waiting.end(), [](const Operation* a, const Operation* b) {
        return std::tie(a->key.ordinal, a->key.execution.program) <
               std::tie(b->key.ordinal, b->key.execution.program);
      });
  const absl::Status cause = absl::AbortedError(
      absl::StrCat("the ranks' streams were at different calls of their programs when the group "
                   "was formed or had "
                   "failed; this use is skipped, so that they meet at ",
                   (*first)->Describe(), "; begin again from one step on all ranks"));
  for (Operation* operation : waiting) {
    if (operation == *first) continue;
    if (tenant.peers.has_value()) {
      LeaderFails(tenant, OperationKey(operation->key), cause, true);
    } else {
      FailOperation(*operation, cause);
    }
  }
}

}  // namespace epd
