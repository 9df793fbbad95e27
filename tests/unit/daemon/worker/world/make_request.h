// What the clients of the tests say: the one place that fills requests, specs and tenants.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "daemon/worker/engine/submission.h"
#include "daemon/worker/engine/tenant_start.h"
#include "proto/epd/v1/segment.h"
#include "proto/epd/v1/text.h"

namespace epd {

inline constexpr GroupId kGroup{7};

inline GroupSpec MakeSpec(uint32_t num_ranks) {
  GroupSpec spec;
  spec.name = "g";
  spec.num_ranks = num_ranks;
  spec.num_experts = 4;
  spec.max_tokens_per_rank = 16;
  spec.recv_capacity_per_rank = 64;
  spec.hidden = 8;
  spec.top_k = 2;
  spec.max_token_dtype = Dtype::kFloat32;
  spec.executor = Executor::kClient;
  return spec;
}

inline RankHolder MakeMember(uint32_t rank, SessionId session) {
  return {.rank = Rank(rank),
          .node = {},
          .session = session,
          .arena_index = 0,
          .host = "host" + std::to_string(rank),
          .pid = static_cast<int32_t>(100 + rank),
          .client_name = {}};
}

// Which call of whom it is.
struct CallOf {
  GroupId group = kGroup;
  Epoch epoch = Epoch(3);
  Formation formation = Formation(1);
  uint32_t rank = 0;
  uint8_t program = 1;
  uint64_t execution = 0;
  uint32_t ordinal = 0;
};

inline shm::SlotRequest MakeStep(const CallOf& call, shm::Step step, OperationId operation) {
  shm::SlotRequest request = {};
  request.step = step;
  request.operation.op_id = operation.value;
  request.group_id = call.group.value;
  request.epoch = call.epoch.value;
  request.formation = call.formation.value;
  request.rank = call.rank;
  request.program[0] = call.program;
  request.execution = call.execution;
  request.ordinal = call.ordinal;
  return request;
}

// Sound as it is.
inline shm::SlotRequest MakePrepare(const CallOf& call) {
  shm::SlotRequest request = MakeStep(call, shm::Step::kAnnounce, OperationId());
  request.kind = shm::Kind::kPrepare;
  request.top_k = 2;
  request.alignment = 1;
  request.num_tokens = 4;
  request.stage_bytes = 16;
  return request;
}

inline shm::SlotRequest MakeDispatch(const CallOf& call) {
  shm::SlotRequest request = MakePrepare(call);
  request.kind = shm::Kind::kDispatch;
  request.dtype = 1;
  request.row_bytes = 32;
  request.plan_id = 1;
  request.recv_capacity = 64;
  return request;
}

// The rows stand in an eager buffer.
inline void SetEagerBuffer(shm::SlotRequest& request, uint64_t eager_buffer) {
  request.step = shm::Step::kAnnounceStaged;
  request.announce.eager_buffer = static_cast<uint32_t>(eager_buffer);
}

inline void SetName(shm::SlotRequest& request, const std::string& name) {
  request.has_name = 1;
  std::memset(request.program, 0, sizeof request.program);
  std::memcpy(request.program, name.data(), std::min(name.size(), sizeof request.program));
  text::Write(name, request.announce.name);
}

// ---- calls in a GPU's stream: site s has the slots 3s (announce), 3s + 1 (publish) and 3s + 2 (pulled) ----

inline constexpr shm::Step kStreamSteps[] = {shm::Step::kStreamAnnounce, shm::Step::kStreamPublish,
                                             shm::Step::kStreamPulled};
inline uint32_t StreamSlot(uint32_t site, shm::Step step) {
  return site * 3 + static_cast<uint32_t>(step) - static_cast<uint32_t>(kStreamSteps[0]);
}
inline void SetStreamStep(shm::SlotRequest& request, uint32_t site, shm::Step step) {
  request.step = step;
  request.ordinal = site;
  if (step == kStreamSteps[0]) return;
  request.stream = {.announce_slot = StreamSlot(site, kStreamSteps[0]),
                    .reserved = 0,
                    .move_report = 0,
                    .plan_header = {}};
}
// What a kernel writes before its stream arms the announce.
inline void SetDemand(shm::SlotRequest& request, uint64_t plan_id, uint64_t demand) {
  request.plan_id = plan_id;
  request.announce.demand = demand;
}
// What the kernels of a rank report that moves its own rows: nothing wrong.
inline void SetGoodReport(shm::SlotRequest& request) { request.stream.move_report = UINT64_MAX; }

// Any bytes.
template <typename Random>
shm::SlotRequest MakeHostile(Random& random) {
  const auto roll = [&](uint64_t sides) { return random() % sides; };
  const auto any = [&](uint64_t sound) { return roll(2) == 0 ? sound : random(); };
  shm::SlotRequest request = {};
  request.step = static_cast<shm::Step>(roll(5));
  request.kind = static_cast<shm::Kind>(roll(8));
  request.operation.op_id = roll(200);
  request.group_id = roll(4);
  request.epoch = roll(3);
  request.formation = roll(3);
  request.rank = static_cast<uint32_t>(roll(6));
  // Its own rank's programs stay sound, or the peers could rightly be failed by it.
  request.program[1] = 77;
  request.execution = roll(5) == 0 ? random() : roll(3);
  request.has_name = static_cast<uint32_t>(roll(3));
  request.error_code = static_cast<uint32_t>(any(0));
  request.top_k = static_cast<uint32_t>(any(1));
  request.row_bytes = any(32);
  request.stage_bytes = random();
  request.out_bytes = random();
  return request;
}

}  // namespace epd
