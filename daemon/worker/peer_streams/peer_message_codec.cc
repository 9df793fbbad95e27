#include "daemon/worker/peer_streams/peer_message_codec.h"

#include <cstring>
#include <string>

#include "daemon/codec/codec.h"
#include "proto/epd/v1/limits.h"
#include "proto/epd/v1/text.h"

namespace epd {
namespace {

// `before`: of the rank before in the message, or all zeros.
void Put(Rank rank, const Announcement& said, const Announcement& before,
         v1::WireAnnouncement& out) {
  out.set_rank(rank.value);
  out.set_dtype(said.dtype ^ before.dtype);
  out.set_has_weights(said.has_weights ^ before.has_weights);
  out.set_top_k(said.top_k ^ before.top_k);
  out.set_alignment(said.alignment ^ before.alignment);
  out.set_row_bytes(said.row_bytes ^ before.row_bytes);
  out.set_plan_id(said.plan_id ^ before.plan_id);
  out.set_spec_hash(said.spec_hash ^ before.spec_hash);
  out.set_kind(static_cast<uint32_t>(said.kind) ^ static_cast<uint32_t>(before.kind));
  out.set_num_tokens(said.num_tokens ^ before.num_tokens);
  out.set_recv_capacity(said.recv_capacity ^ before.recv_capacity);
  out.set_demand(said.demand ^ before.demand);
  out.set_stage_bytes(said.stage_bytes ^ before.stage_bytes);
  out.set_out_bytes(said.out_bytes ^ before.out_bytes);
  out.set_from_stream(said.from_stream != before.from_stream);
  out.set_eager(said.eager_buffer.has_value() != before.eager_buffer.has_value());
}

Announcement Get(const v1::WireAnnouncement& in, const Announcement& before) {
  Announcement said{.dtype = in.dtype() ^ before.dtype,
                    .has_weights = in.has_weights() ^ before.has_weights,
                    .top_k = in.top_k() ^ before.top_k,
                    .alignment = in.alignment() ^ before.alignment,
                    .row_bytes = in.row_bytes() ^ before.row_bytes,
                    .plan_id = in.plan_id() ^ before.plan_id,
                    .spec_hash = in.spec_hash() ^ before.spec_hash,
                    .kind = static_cast<shm::Kind>(in.kind() ^ static_cast<uint32_t>(before.kind)),
                    .num_tokens = in.num_tokens() ^ before.num_tokens,
                    .recv_capacity = in.recv_capacity() ^ before.recv_capacity,
                    .demand = in.demand() ^ before.demand,
                    .stage_bytes = in.stage_bytes() ^ before.stage_bytes,
                    .out_bytes = in.out_bytes() ^ before.out_bytes,
                    .from_stream = in.from_stream() != before.from_stream};
  // In which eager buffer rows stand is each worker's own matter.
  if (in.eager() != before.eager_buffer.has_value()) said.eager_buffer = 0;
  return said;
}

// Before the first rank.
Announcement Zeros() { return {.kind = static_cast<shm::Kind>(0)}; }

void PutSubject(const MessageSubject& subject, v1::WireMessage& out) {
  out.set_group_id(subject.group.value);
  out.set_formation(subject.formation.value);
  const ProgramId& program = subject.key.execution.program;
  out.set_program(std::string(program.begin(), program.end()));
  out.set_execution(subject.key.execution.number);
  out.set_ordinal(subject.key.ordinal);
  out.set_occurrence(subject.key.occurrence);
  out.set_named(subject.key.named);
}

// Nothing: none is said, or one of the fields is that the one before stands for.
LastSubject GetSubject(const v1::WireMessage& in, const LastSubject& last) {
  MessageSubject subject;
  ProgramId& program = subject.key.execution.program;
  if (in.same_subject()) return in.program().empty() ? last : std::nullopt;
  if (in.program().size() != program.size()) return std::nullopt;
  subject.group = GroupId(in.group_id());
  subject.formation = Formation(in.formation());
  std::memcpy(program.data(), in.program().data(), program.size());
  subject.key.execution.number = in.execution();
  subject.key.ordinal = in.ordinal();
  subject.key.occurrence = in.occurrence();
  subject.key.named = in.named();
  return subject;
}

}  // namespace

v1::WireMessage ToProto(const PeerMessage& message, LastSubject& last) {
  v1::WireMessage out;
  out.set_step(static_cast<uint32_t>(message.step));
  const MessageSubject subject{message.group, message.formation, message.key};
  out.set_same_subject(last == subject);
  if (!out.same_subject()) PutSubject(*(last = subject), out);
  out.set_clock(message.clock);
  out.set_name(message.name);
  out.set_number(message.number);
  out.set_ticket_clock(message.ticket.clock);
  out.set_ticket_leader(message.ticket.leader.value);
  out.set_bytes(message.bytes);
  out.mutable_tokens()->Assign(message.tokens.begin(), message.tokens.end());
  out.set_failures_seen(message.failures_seen);
  out.set_unsynchronised(message.unsynchronised);
  Announcement before = Zeros();
  for (const auto& [rank, said] : message.said) {
    Put(rank, said, before, *out.add_said());
    before = said;
  }
  if (!message.cause.ok()) *out.mutable_cause() = ToProto(message.cause);
  return out;
}

std::optional<PeerMessage> FromProto(const v1::WireMessage& in, LastSubject& last) {
  PeerMessage message;
  const uint32_t step = in.step();
  const bool known = step >= static_cast<uint32_t>(LeaderStep::kAnnounce) &&
                     step <= static_cast<uint32_t>(LeaderStep::kRowsOver);
  const LastSubject subject = GetSubject(in, last);
  if (!known || !subject.has_value()) return std::nullopt;
  if (in.said_size() > static_cast<int>(limits::kPlanRanks)) return std::nullopt;
  if (in.tokens_size() > static_cast<int>(limits::kPlanRanks * limits::kPlanRanks))
    return std::nullopt;
  last = subject;
  message.step = static_cast<LeaderStep>(step);
  message.group = subject->group;
  message.formation = subject->formation;
  message.key = subject->key;
  message.clock = in.clock();
  message.name = text::Clean(in.name(), limits::kOperationNameBytes);
  message.number = in.number();
  message.ticket = {in.ticket_clock(), Incarnation(in.ticket_leader())};
  message.bytes = in.bytes();
  message.tokens.assign(in.tokens().begin(), in.tokens().end());
  message.failures_seen = in.failures_seen();
  message.unsynchronised = in.unsynchronised();
  Announcement before = Zeros();
  for (const v1::WireAnnouncement& one : in.said()) {
    message.said.emplace_back(Rank(one.rank()), before = Get(one, before));
  }
  message.cause = FromProto(in.cause());
  return message;
}

}  // namespace epd
