#include "daemon/worker/peer_streams/peer_message_codec.h"

#include <cstring>
#include <string>

#include "daemon/codec/codec.h"
#include "proto/epd/v1/limits.h"
#include "proto/epd/v1/text.h"

namespace epd {
namespace {

void Put(Rank rank, const Announcement& said, v1::WireAnnouncement& out) {
  out.set_rank(rank.value);
  out.set_dtype(said.dtype);
  out.set_has_weights(said.has_weights);
  out.set_top_k(said.top_k);
  out.set_alignment(said.alignment);
  out.set_row_bytes(said.row_bytes);
  out.set_plan_id(said.plan_id);
  out.set_spec_hash(said.spec_hash);
  out.set_kind(static_cast<uint32_t>(said.kind));
  out.set_num_tokens(said.num_tokens);
  out.set_recv_capacity(said.recv_capacity);
  out.set_demand(said.demand);
  out.set_stage_bytes(said.stage_bytes);
  out.set_out_bytes(said.out_bytes);
  out.set_from_stream(said.from_stream);
  out.set_eager(said.eager_buffer.has_value());
}

// In which eager buffer rows stand is each worker's own matter.
std::optional<uint8_t> EagerBuffer(const v1::WireAnnouncement& in) {
  return in.eager() ? std::optional<uint8_t>(0) : std::nullopt;
}

Announcement Get(const v1::WireAnnouncement& in) {
  return Announcement{.dtype = in.dtype(),
                      .has_weights = in.has_weights(),
                      .top_k = in.top_k(),
                      .alignment = in.alignment(),
                      .row_bytes = in.row_bytes(),
                      .plan_id = in.plan_id(),
                      .spec_hash = in.spec_hash(),
                      .kind = static_cast<shm::Kind>(in.kind()),
                      .num_tokens = in.num_tokens(),
                      .recv_capacity = in.recv_capacity(),
                      .demand = in.demand(),
                      .stage_bytes = in.stage_bytes(),
                      .out_bytes = in.out_bytes(),
                      .eager_buffer = EagerBuffer(in),
                      .from_stream = in.from_stream()};
}

}  // namespace

v1::WireMessage ToProto(const PeerMessage& message) {
  v1::WireMessage out;
  out.set_step(static_cast<uint32_t>(message.step));
  out.set_group_id(message.group.value);
  out.set_formation(message.formation.value);
  out.set_clock(message.clock);
  const ProgramId& program = message.key.execution.program;
  out.set_program(std::string(program.begin(), program.end()));
  out.set_execution(message.key.execution.number);
  out.set_ordinal(message.key.ordinal);
  out.set_occurrence(message.key.occurrence);
  out.set_named(message.key.named);
  out.set_name(message.name);
  out.set_number(message.number);
  out.set_ticket_clock(message.ticket.clock);
  out.set_ticket_leader(message.ticket.leader.value);
  out.set_bytes(message.bytes);
  out.set_failures_seen(message.failures_seen);
  out.set_unsynchronised(message.unsynchronised);
  for (const auto& [rank, said] : message.said) Put(rank, said, *out.add_said());
  *out.mutable_cause() = ToProto(message.cause);
  return out;
}

std::optional<PeerMessage> FromProto(const v1::WireMessage& in) {
  PeerMessage message;
  const uint32_t step = in.step();
  const bool known = step >= static_cast<uint32_t>(LeaderStep::kAnnounce) &&
                     step <= static_cast<uint32_t>(LeaderStep::kRows);
  ProgramId& program = message.key.execution.program;
  if (!known || in.program().size() != program.size()) return std::nullopt;
  if (in.said_size() > static_cast<int>(limits::kPlanRanks)) return std::nullopt;
  message.step = static_cast<LeaderStep>(step);
  message.group = GroupId(in.group_id());
  message.formation = Formation(in.formation());
  message.clock = in.clock();
  std::memcpy(program.data(), in.program().data(), program.size());
  message.key.execution.number = in.execution();
  message.key.ordinal = in.ordinal();
  message.key.occurrence = in.occurrence();
  message.key.named = in.named();
  message.name = text::Clean(in.name(), limits::kOperationNameBytes);
  message.number = in.number();
  message.ticket = {in.ticket_clock(), Incarnation(in.ticket_leader())};
  message.bytes = in.bytes();
  message.failures_seen = in.failures_seen();
  message.unsynchronised = in.unsynchronised();
  for (const v1::WireAnnouncement& said : in.said()) {
    message.said.emplace_back(Rank(said.rank()), Get(said));
  }
  message.cause = FromProto(in.cause());
  return message;
}

}  // namespace epd
